// Runs jobs with the WebAssembly runtime: `node predict.mjs MODULE JOBS [RECORD]`. JOBS is a JSON list of
// {model, activations, maxMemory, inputs, outputs, rows}: files of a model, of float32 inputs, and for the outputs; or
// rows of a table. Prints a JSON list of what happened to each; RECORD gets all calls (see record.mjs).
import { readFileSync, writeFileSync } from "node:fs";

const [module, jobs, record] = process.argv.slice(2);
const recorder = record && (await import("./record.mjs"));
const { InvalidInput, InvalidModel, TooMuchMemory, load } = await import(module);
const found = [];
for (const job of JSON.parse(readFileSync(jobs, "utf8"))) found.push(await done(job));
if (recorder) recorder.recordTo(record);
process.stdout.write(JSON.stringify(found));

async function done(job) {
  const { activations, maxMemory } = job;
  try {
    const model = await load(new Uint8Array(readFileSync(job.model)), { activations, maxMemory });
    const facts = { verdict: "runs", labels: model.labels, sections: plain(model.sections) };
    if (job.rows) return { ...facts, codes: Array.from(bitsOf(model.encodeRows(job.rows))) };
    if (!job.inputs) return facts;
    const content = readFileSync(job.inputs);
    const x = new Float32Array(content.buffer.slice(content.byteOffset, content.byteOffset + content.length));
    writeFileSync(job.outputs, Buffer.from(model.predict(x).buffer));
    return facts;
  } catch (error) {
    const kinds = { TooMuchMemory, InvalidModel, InvalidInput };
    const verdict = Object.keys(kinds).find((name) => error instanceof kinds[name]) ?? "unexplained";
    return { verdict, message: error.message, stack: verdict === "unexplained" ? error.stack : undefined };
  }
}

function plain(sections) {
  const list = (value) => (ArrayBuffer.isView(value) ? Array.from(value) : value);
  return JSON.parse(JSON.stringify(sections, (_, value) => list(value)));
}

function bitsOf(floats) {
  return new Uint32Array(floats.buffer, floats.byteOffset, floats.length);
}
