// Records every call to the compiled runtime, with the memory it reads, in place of WebAssembly.instantiate.
// csrc/tests/replay.cpp makes the same calls to a native build with sanitizers. `recordTo(file)` writes them.
//
// A record is a letter and its content, little-endian: A id size (allocate), R id (release), W id size bytes (content),
// C name count arguments result (a call that returned), F name count arguments (one that failed), Y id size bytes (what
// a run computed), E (the end of an instance). An argument is 0 and a float64, or 1, an id and an offset.
import { writeFileSync } from "node:fs";

/** Which arguments are addresses. */
const ADDRESSES = {
  checksum: [0, 2],
  all_finite: [0],
  linear: [4, 8, 9],
  convolution: [1, 2, 6, 7],
  pool: [2, 4, 5],
};
Object.assign(ADDRESSES, { affine: [4, 5], concatenate: [0], run: [0, 2] });
const UNRECORDED = new Set([
  "memory",
  "_initialize",
  "failure",
  "failure_text",
  "destroy",
]);
const OUTPUT = { checksum: 2, run: 2 };

let parts = [];
const instantiate = WebAssembly.instantiate;

export function recordTo(file) {
  writeFileSync(file, Buffer.concat(parts));
  parts = [];
}

const u32 = (...numbers) => Buffer.from(Uint32Array.from(numbers).buffer);
const f64 = (number) => Buffer.from(Float64Array.of(number).buffer);
const text = (word) => Buffer.concat([u32(word.length), Buffer.from(word)]);
const emit = (letter, ...content) =>
  parts.push(Buffer.from(letter), ...content);

WebAssembly.instantiate = async function (module, imports) {
  const real = (await instantiate(module, imports)).exports;
  const blocks = new Map(); // by address: id, size, and the content that was written last
  let count = 0;
  emit("E");

  const blockOf = (address) => {
    for (const [start, block] of blocks)
      if (address >= start && address < start + block.size)
        return [start, block];
    throw new Error(`no block at ${address}`);
  };
  const contentOf = (start, size) =>
    Buffer.from(real.memory.buffer.slice(start, start + size));

  function call(name, values) {
    if (name === "allocate") {
      const start = real.allocate(...values) >>> 0;
      blocks.set(start, {
        id: count,
        size: values[0],
        written: Buffer.alloc(0),
      });
      emit("A", u32(count++, values[0]));
      return start;
    }
    if (name === "release") {
      emit("R", u32(blockOf(values[0])[1].id));
      blocks.delete(values[0]);
      return real.release(...values);
    }
    const encoded = values.map((value, i) => {
      if (!value || !ADDRESSES[name]?.includes(i))
        return Buffer.concat([u32(0), f64(value)]);
      const [start, block] = blockOf(value);
      const content = contentOf(start, block.size);
      if (OUTPUT[name] !== i && !content.equals(block.written)) {
        emit("W", u32(block.id, block.size), content);
        block.written = content;
      }
      return Buffer.concat([u32(1), u32(block.id, value - start)]);
    });
    const head = [text(name), u32(values.length), ...encoded];
    let result;
    try {
      result = real[name](...values);
    } catch (error) {
      emit("F", ...head);
      throw error;
    }
    emit("C", ...head, f64(Number(result ?? 0)));
    if (name in OUTPUT) {
      const [start, block] = blockOf(values[OUTPUT[name]]);
      emit("Y", u32(block.id, block.size), contentOf(start, block.size));
    }
    return result;
  }

  const exports = Object.fromEntries(
    Object.entries(real).map(([name, value]) => [
      name,
      UNRECORDED.has(name) ? value : (...values) => call(name, values),
    ]),
  );
  return { exports };
};
