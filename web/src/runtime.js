// An instance of the compiled runtime: its memory, its functions, and its failures as errors.
import { numbersOf } from "./container.js";
import { InvalidModel, TooMuchMemory } from "./errors.js";

/** @typedef {Record<string, (...values: number[]) => number>} Functions */

const OVER_LIMIT = 1;
const NO_MEMORY = 2;

/** One network, in a memory of its own. After a failure nothing can be computed with it any more. */
export class Runtime {
  /**
   * @param {WebAssembly.Module} module
   * @returns {Promise<Runtime>}
   */
  static async of(module) {
    try {
      // Older browsers start only tiny modules without waiting.
      return new Runtime(await WebAssembly.instantiate(module, {}));
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      throw new TooMuchMemory(`there is not enough memory for the runtime (${error.message})`);
    }
  }

  /** @param {WebAssembly.Instance} instance */
  constructor({ exports }) {
    /** @type {WebAssembly.Memory} */
    this.memory = /** @type {any} */ (exports.memory);
    /** @type {Functions} */
    this.functions = /** @type {any} */ (exports);
    this.call("_initialize");
  }

  /**
   * Calls a function of the runtime. A failure there ends the call by a trap, and leaves its reason behind.
   * @param {string} name @param {...number} values
   */
  call(name, ...values) {
    try {
      return this.functions[name](...values);
    } catch (error) {
      if (!(error instanceof WebAssembly.RuntimeError || error instanceof RangeError)) throw error;
      const kind = this.functions.failure();
      const reason = kind ? this.text(this.functions.failure_text()) : error.message;
      if (kind === OVER_LIMIT || kind === NO_MEMORY) throw new TooMuchMemory(reason);
      throw new InvalidModel(`the runtime cannot run this model: ${reason}`);
    }
  }

  /** @param {number} at */
  text(at) {
    const bytes = new Uint8Array(this.memory.buffer, at);
    return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
  }

  /** @param {number} bytes @returns {number} the address, which is a multiple of 64 */
  allocate(bytes) {
    return this.call("allocate", bytes) >>> 0;
  }

  /** @param {number} address */
  release(address) {
    this.call("release", address);
  }

  /** A copy in the memory. @param {Uint8Array | Float32Array | Uint32Array} numbers */
  put(numbers) {
    const address = this.allocate(numbers.byteLength);
    this.bytes(address, numbers.byteLength).set(new Uint8Array(numbers.buffer, numbers.byteOffset, numbers.byteLength));
    return address;
  }

  /** Valid until memory is allocated. @param {number} address @param {number} count */
  bytes(address, count) {
    return new Uint8Array(this.memory.buffer, address, count);
  }

  /** Valid until memory is allocated. @param {number} address @param {number} count */
  floats(address, count) {
    return new Float32Array(this.memory.buffer, address, count);
  }

  /**
   * Whether all numbers of a tensor of a file at `file` are finite.
   * @param {number} file
   * @param {number} size
   * @param {import("./graph.js").Stored} tensor
   */
  allFinite(file, size, tensor) {
    const start = file + tensor.start;
    if (tensor.dtype === "float32" && start % 4 === 0) return Boolean(this.call("all_finite", start, tensor.bytes / 4));
    return numbersOf(this.bytes(file, size), tensor).every(Number.isFinite);
  }

  /** The SHA-256 of some bytes as hexadecimal digits. @param {number} address @param {number} count */
  digest(address, count) {
    const to = this.allocate(32);
    this.call("checksum", address, count, to);
    const digits = Array.from(this.bytes(to, 32), (byte) => byte.toString(16).padStart(2, "0")).join("");
    this.release(to);
    return digits;
  }
}
