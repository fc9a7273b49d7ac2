// Times our runtime and onnxruntime-web in one process, one thread, interleaved: `node measure.mjs MODULE JOB`. JOB is
// a JSON file {model, real, int8, shape, rounds}: a model file, its ONNX exports, and the shape of a batch of 1. Prints
// JSON: milliseconds of each round by contestant, those from bytes to the first prediction, and the largest errors.
import { readFileSync } from "node:fs";
import * as ort from "onnxruntime-web/wasm";

const GAP = 30; // milliseconds of rest before each contestant
const SLICE = 60; // milliseconds of calls, of which the median counts

const [module, file] = process.argv.slice(2);
const { load } = await import(module);
const job = JSON.parse(readFileSync(file, "utf8"));
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";

const size = job.shape.reduce((a, b) => a * b, 1);
const x = Float32Array.from({ length: size }, (_, i) => Math.sin(1.7 * i) * Math.SQRT2);
const bytes = new Uint8Array(readFileSync(job.model));
const wasm = readFileSync(new URL("bayesbinn.wasm", module));
const contestants = new Map();
const first = {};
for (const activations of ["int8", "exact"]) {
  const times = [];
  for (let i = 0; i < 9; i++) {
    await rest();
    const start = performance.now();
    const model = await load(bytes, { activations, wasm }); // compiles the WebAssembly each time, as a page does once
    model.predict(x);
    times.push(performance.now() - start);
    contestants.set(activations, () => model.predict(x));
  }
  first[activations] = times;
}
for (const kind of ["real", "int8"]) {
  const session = await ort.InferenceSession.create(new Uint8Array(readFileSync(job[kind])));
  const feeds = { [session.inputNames[0]]: new ort.Tensor("float32", x, job.shape) };
  const name = `onnxruntime-web ${kind === "real" ? "fp32" : "int8"}`;
  contestants.set(name, async () => (await session.run(feeds))[session.outputNames[0]].data);
}

const exact = await contestants.get("onnxruntime-web fp32")();
const largest = exact.reduce((most, each) => Math.max(most, Math.abs(each)), 0);
const errors = {};
const rounds = {};
for (const [name, run] of contestants) {
  const y = await run();
  errors[name] = exact.reduce((most, each, i) => Math.max(most, Math.abs(each - y[i])), 0) / largest;
  rounds[name] = [];
}
for (let round = 0; round < job.rounds; round++) {
  const order = [...contestants].sort(() => Math.random() - 0.5);
  for (const [name, run] of order) rounds[name].push(await slice(run));
}
process.stdout.write(
  JSON.stringify({ rounds, first, errors, node: process.version, onnxruntime: ort.env.versions.web }),
);

function rest() {
  return new Promise((resolve) => setTimeout(resolve, GAP));
}

// The median of about SLICE milliseconds of calls, after a rest and a warm-up call.
async function slice(run) {
  await rest();
  await run();
  const times = [];
  let total = 0;
  while (total < SLICE) {
    const start = performance.now();
    await run();
    times.push(performance.now() - start);
    total += times[times.length - 1];
  }
  return times.sort((a, b) => a - b)[times.length >> 1];
}
