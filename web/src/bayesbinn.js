// Runs a bayesbinn model file in a browser or in Node: the same file and the same kernels as the Python package.
import { encoderOf } from "./encoder.js";
import { InvalidInput, InvalidModel, TooMuchMemory } from "./errors.js";
import { readModel } from "./container.js";
import { product, shown } from "./graph.js";
import { buildNetwork } from "./network.js";
import { classified, meanAndDeviation, meanLogits, meanProbabilities, twoClasses } from "./prediction.js";
import { Runtime } from "./runtime.js";

export { InvalidInput, InvalidModel, TooMuchMemory };

/** @typedef {import("./container.js").ModelFile} ModelFile */
/** @typedef {import("./prediction.js").Logits} Logits */
/** @typedef {import("./prediction.js").Prediction} Prediction */
/**
 * `activations`: "exact" computes with float32 activations; "int8" rounds the input of every binary layer to 8 bits
 * and is several times faster. `maxMemory`: bytes that the file, the prepared network and a prediction may take
 * together, 1 GB by default. `wasm`: the bytes of bayesbinn.wasm, by default those of the file beside this module.
 * @typedef {{activations?: "exact" | "int8", maxMemory?: number, wasm?: BufferSource}} Options
 */

const DEFAULT_MEMORY = 2 ** 30;
/** Bytes of inputs and outputs that are in the runtime's memory at once, if an example has no more. */
const STRIP = 2 ** 22;

/** @type {Promise<WebAssembly.Module> | null} */
let compiled = null;

/** @returns {Promise<BufferSource>} */
async function wasmBesideThisModule() {
  const address = new URL("bayesbinn.wasm", import.meta.url);
  if (address.protocol === "file:" && typeof process !== "undefined") {
    const { readFile } = await import("node:fs/promises");
    return /** @type {Promise<BufferSource>} */ (readFile(address));
  }
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address}: ${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
}

/** @param {BufferSource | undefined} wasm */
function moduleOf(wasm) {
  if (wasm) return WebAssembly.compile(wasm);
  compiled ??= wasmBesideThisModule().then((bytes) => WebAssembly.compile(bytes));
  compiled.catch(() => (compiled = null)); // the next call tries again
  return compiled;
}

/**
 * Reads a model file and prepares it.
 * @param {Uint8Array | ArrayBuffer} bytes of a file that `bb.pack` or `bayesbinn pack` wrote
 * @param {Options} [options]
 * @returns {Promise<Model>}
 */
export async function load(bytes, options = {}) {
  const { activations = "exact", maxMemory = DEFAULT_MEMORY, wasm } = options;
  if (activations !== "exact" && activations !== "int8") {
    throw new InvalidInput(`activations=${activations}: it must be 'exact' or 'int8'`);
  }
  if (!(maxMemory >= 1 && Number.isSafeInteger(maxMemory))) {
    throw new InvalidInput(`maxMemory=${maxMemory}: it must be a number of bytes`);
  }
  const file = ArrayBuffer.isView(bytes)
    ? new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength)
    : new Uint8Array(bytes);
  const runtime = await Runtime.of(await moduleOf(wasm));
  const size = file.length;
  let address = 0;
  const model = readModel(file, maxMemory, (content) => {
    address = runtime.put(content);
    return {
      get bytes() {
        return runtime.bytes(address, size);
      },
      digest(zeroed) {
        this.bytes.fill(48, zeroed, zeroed + 64);
        return runtime.digest(address, size);
      },
      allFinite: (tensor) => runtime.allFinite(address, size, tensor),
    };
  });
  buildNetwork(runtime, model, address, size, activations === "int8", Math.max(0, maxMemory - size));
  runtime.release(address);
  return new Model(runtime, model, activations, maxMemory);
}

/** What `load` returns. Arrays of several examples have one after the other. */
export class Model {
  /** @type {Runtime | null} */
  #runtime;
  #encode;
  #inputs;
  #outputs;
  #left;
  #buffers = { rows: 0, x: 0, y: 0 };

  /**
   * @param {Runtime} runtime
   * @param {ModelFile} file
   * @param {"exact" | "int8"} activations
   * @param {number} maxMemory
   */
  constructor(runtime, file, activations, maxMemory) {
    const { graph, shapes } = file;
    this.#runtime = runtime;
    this.#encode = file.encoding && encoderOf(file.encoding);
    this.#inputs = product(graph.inputShape);
    this.outputShape = shapes[shapes.length - 1];
    this.#outputs = product(this.outputShape);
    this.#left = maxMemory - runtime.call("memory_taken");
    this.activations = activations;
    this.task = graph.task;
    this.inputShape = graph.inputShape;
    this.networks = graph.networks;
    this.logitScale = graph.logitScale;
    this.residual = file.residual;
    this.encoding = file.encoding;
    this.sections = file.sections;
    this.checksum = file.checksum;
    /** The classes' labels or names as text, or null. @type {string[] | null} */
    this.labels = file.labels ? file.labels.map(String) : graph.classes.length ? graph.classes : null;
    /** How many numbers `predict` returns for an example: classes, or outputs of a regression. */
    this.outputs =
      graph.task === "classification" && this.outputShape.length === 1 && this.#outputs === 1 ? 2 : this.#outputs;
  }

  /**
   * Logits [batch][classes], whose softmax is `predictProba`; for a regression the mean output. The logits of an
   * ensemble are the logarithms of its mean probabilities. A network with one logit z has the two logits (0, z).
   * @param {Float32Array} x one or more examples
   * @returns {Float32Array}
   */
  predict(x) {
    if (this.task === "regression") return this.#inStrips(x, meanOutputs);
    if (this.networks === 1) {
      return this.#inStrips(x, (y) => (this.outputShape.length === 1 ? twoClasses(y).values : y.values));
    }
    this.#needClasses();
    return this.#inStrips(x, meanLogits);
  }

  /** Probabilities [batch][classes], averaged over the networks. @param {Float32Array} x @returns {Float32Array} */
  predictProba(x) {
    this.#needClasses();
    return this.#inStrips(x, meanProbabilities);
  }

  /** Probabilities and their uncertainty, split into its parts. @param {Float32Array} x @returns {Prediction} */
  prediction(x) {
    this.#needClasses();
    return classified(this.#logits(this.#checked(x)));
  }

  /**
   * Mean and unbiased standard deviation over the networks of each output; the deviation of a single network is 0.
   * @param {Float32Array} x
   * @returns {{mean: Float32Array, std: Float32Array}}
   */
  regression(x) {
    if (this.task !== "regression") {
      throw new InvalidInput("this model is a classifier; use prediction() or predictProba()");
    }
    return meanAndDeviation(this.#logits(this.#checked(x)));
  }

  /**
   * Codes of raw rows of the table that the model learned from.
   * @param {Record<string, unknown>[]} rows
   * @returns {Float32Array}
   */
  encodeRows(rows) {
    if (!this.#encode) throw new InvalidInput("this model file has no table encoding: it takes arrays of numbers");
    return this.#encode(rows);
  }

  /** `predictProba` (for a regression `predict`) of raw rows. @param {Record<string, unknown>[]} rows */
  predictRows(rows) {
    const x = this.encodeRows(rows);
    return this.task === "regression" ? this.predict(x) : this.predictProba(x);
  }

  /** Gives the memory back; the model cannot be used afterwards. */
  free() {
    this.#runtime = null;
  }

  // ---- running ----

  #needClasses() {
    if (this.task === "regression") throw new InvalidInput("this model is for regression; use predict()");
    if (this.outputShape.length !== 1) {
      throw new InvalidInput(
        `an output of shape ${shown(this.outputShape)} is not one number per class; use predict()`,
      );
    }
  }

  /** @param {Float32Array} x */
  #checked(x) {
    if (!(x instanceof Float32Array) || x.length % this.#inputs) {
      const found = x instanceof Float32Array ? `${x.length} numbers` : typeof x;
      throw new InvalidInput(`${found}: a Float32Array of ${this.#inputs} numbers for each example is needed`);
    }
    return x;
  }

  /** @param {Float32Array} x @param {(logits: Logits) => Float32Array} function_ */
  #inStrips(x, function_) {
    const rows = this.#checked(x).length / this.#inputs;
    const most = this.#rowsAtOnce();
    if (rows <= most) return function_(this.#logits(x));
    const all = new Float32Array(rows * this.outputs);
    for (let first = 0; first < rows; first += most) {
      const strip = x.subarray(first * this.#inputs, Math.min(first + most, rows) * this.#inputs);
      all.set(function_(this.#logits(strip, first)), first * this.outputs);
    }
    return all;
  }

  #rowsAtOnce() {
    return Math.max(1, Math.floor(STRIP / (4 * (this.#inputs + this.networks * this.#outputs))));
  }

  /**
   * Finite outputs of all networks, scaled if they are logits.
   * @param {Float32Array} x checked
   * @param {number} [first] the number of its first row
   * @returns {Logits}
   */
  #logits(x, first = 0) {
    const batch = x.length / this.#inputs;
    const outputs = this.#outputs;
    const values = new Float32Array(this.networks * batch * outputs);
    const most = this.#rowsAtOnce();
    for (let row = 0; row < batch; row += most) {
      const count = Math.min(most, batch - row);
      const strip = this.#run(x.subarray(row * this.#inputs, (row + count) * this.#inputs), count, first + row);
      for (let n = 0; n < this.networks; n++) {
        values.set(strip.subarray(n * count * outputs, (n + 1) * count * outputs), (n * batch + row) * outputs);
      }
    }
    const scale = this.task === "classification" ? Math.fround(this.logitScale) : 1;
    for (let i = 0; i < values.length; i++) {
      if (scale !== 1) values[i] *= scale;
      if (!Number.isFinite(values[i])) {
        const row = first + (Math.floor(i / outputs) % batch);
        throw new InvalidInput(`row ${row}: the model's output is NaN or infinite; the inputs may be too large`);
      }
    }
    return { values, networks: this.networks, batch, outputs };
  }

  /**
   * The networks' outputs, valid until the next call.
   * @param {Float32Array} x
   * @param {number} rows
   * @param {number} first
   */
  #run(x, rows, first) {
    const runtime = this.#runtime;
    if (!runtime) throw new InvalidInput("this model was freed; load it again");
    const buffers = this.#buffers;
    if (rows > buffers.rows) {
      const bytes = [4 * rows * this.#inputs, 4 * rows * this.networks * this.#outputs];
      if (bytes[0] + bytes[1] > this.#left) {
        throw new TooMuchMemory(
          `${rows} examples need ${bytes[0] + bytes[1]} bytes, maxMemory leaves ${this.#left}; raise it`,
        );
      }
      if (buffers.rows) for (const address of [buffers.x, buffers.y]) runtime.release(address);
      buffers.rows = 0;
      [buffers.x, buffers.y] = bytes.map((count) => runtime.allocate(count));
      buffers.rows = rows;
    }
    runtime.floats(buffers.x, x.length).set(x);
    if (!runtime.call("all_finite", buffers.x, x.length)) {
      const lost = x.findIndex((value) => !Number.isFinite(value));
      const row = first + Math.floor(lost / this.#inputs);
      throw new InvalidInput(`row ${row} has NaN, infinity or a number too large for float32; use finite numbers`);
    }
    runtime.call("run", buffers.x, rows, buffers.y);
    return runtime.floats(buffers.y, rows * this.networks * this.#outputs);
  }
}

/** The mean over the networks, in float32. @param {Logits} outputs */
function meanOutputs({ values, networks }) {
  const size = values.length / networks;
  const mean = values.slice(0, size);
  for (let i = size; i < values.length; i++) mean[i % size] += values[i];
  return mean.map((sum) => sum / networks);
}
