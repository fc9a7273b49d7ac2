// Builds the network of a model file in the runtime: one call per operation, layouts and fusion decided here, exactly
// as `runtime/native.py` does, so that both compute the same numbers.
//
// Images are stored with the channels last, everything else in the file's shapes ("plain"). A scale and shift, and
// then a ReLU or hard tanh, are fused into the operation before them if nothing else needs its result.
import { TooMuchMemory } from "./errors.js";
import { numbersOf } from "./container.js";
import { channelsOf, ownPerNetwork, pooledSize, product, scalesTheFirstAxis, takesEightBits } from "./graph.js";

/** @typedef {import("./container.js").ModelFile} ModelFile */
/** @typedef {import("./graph.js").Node} Node */
/** @typedef {import("./graph.js").Shape} Shape */
/** @typedef {import("./graph.js").Stored} Stored */
/** @typedef {import("./runtime.js").Runtime} Runtime */
/** @typedef {"plain" | "image"} Layout */
/**
 * Scale and shift [sets][channels] (addresses) for so many sets of networks.
 * @typedef {[number, number, number]} Scales
 */
/** Scales, and the limits of the result. @typedef {[number, number, number, number, number]} Finish */

/** Sizes have 32 bits in WebAssembly: no value may have more numbers, and no layer more weights. */
const MAX_ELEMENTS = 2 ** 26;

/**
 * @param {Runtime} runtime @param {ModelFile} model @param {number} file where the file is in the runtime's memory
 * @param {number} size of the file @param {boolean} quantized @param {number} maxMemory for the network
 */
export function buildNetwork(runtime, model, file, size, quantized, maxMemory) {
  const large = model.shapes.some((shape) => product(shape) > MAX_ELEMENTS);
  if (large) throw new TooMuchMemory(`a layer has more than ${MAX_ELEMENTS} numbers, too many for WebAssembly`);
  new Builder(runtime, model, file, size, quantized).build(maxMemory);
}

class Builder {
  #runtime;
  #model;
  #file;
  #size;
  #quantized;
  #nodes;
  #shapes;
  #uses;
  /**
   * Values of the runtime by number and layout; a fused node's value is that of the whole group.
   * @type {Record<Layout, Map<number, number>>}
   */
  #places = { plain: new Map([[0, 0]]), image: new Map() };
  /** @type {Set<number>} */
  #done = new Set();
  // The runtime shares data that comes from the same address, so nothing is released until it is sealed.
  /** @type {Map<string, number>} */
  #floats = new Map();
  /** @type {Map<string, Scales>} */
  #scales = new Map();
  /** @type {number[]} */
  #staged = [];

  /**
   * @param {Runtime} runtime
   * @param {ModelFile} model
   * @param {number} file
   * @param {number} size
   * @param {boolean} quantized
   */
  constructor(runtime, model, file, size, quantized) {
    this.#runtime = runtime;
    this.#model = model;
    this.#file = file;
    this.#size = size;
    this.#quantized = quantized;
    this.#nodes = model.graph.nodes;
    this.#shapes = model.shapes;
    this.#uses = new Uint32Array(this.#shapes.length);
    for (const node of this.#nodes) for (const value of node.inputs) this.#uses[value]++;
    this.#uses[this.#nodes.length]++;
  }

  /** @param {number} maxMemory */
  build(maxMemory) {
    const inputs = product(this.#shapes[0]);
    this.#runtime.call("create", this.#model.graph.networks, inputs, maxMemory);
    this.#nodes.forEach((node, index) => {
      if (!this.#done.has(index)) this.#add(index, node);
    });
    let output = this.#get(this.#nodes.length, "plain");
    // Only reshapes: the input must be copied.
    if (output === 0) output = this.#runtime.call("affine", 0, 1, inputs, 1, 0, 0, 0, -Infinity, Infinity);
    this.#runtime.call("seal", output, product(this.#shapes[this.#shapes.length - 1]));
    for (const address of this.#staged) this.#runtime.release(address);
  }

  /** @param {Uint8Array | Float32Array | Uint32Array} numbers */
  #stage(numbers) {
    const address = this.#runtime.put(numbers);
    this.#staged.push(address);
    return address;
  }

  // ---- values and layouts ----

  /**
   * A value in a layout; converted once, when first needed.
   * @param {number} value
   * @param {Layout} layout
   * @returns {number}
   */
  #get(value, layout) {
    const known = this.#places[layout].get(value);
    if (known !== undefined) return known;
    const other = layout === "plain" ? "image" : "plain";
    let place = /** @type {number} */ (this.#places[other].get(value));
    const [channels, ...rest] = this.#shapes[value];
    const pixels = product(rest);
    if (channels > 1 && pixels > 1) {
      const sizes = other === "image" ? [pixels, channels] : [channels, pixels];
      place = this.#runtime.call("transpose", place, ...sizes);
    }
    this.#places[layout].set(value, place);
    return place;
  }

  /** A value in whatever layout it has. @param {number} value @returns {[number, Layout]} */
  #present(value) {
    const layout = this.#places.plain.has(value) ? "plain" : "image";
    return [/** @type {number} */ (this.#places[layout].get(value)), layout];
  }

  // ---- fusion ----

  /**
   * @param {number} index of a node
   * @param {string[]} ops
   * @returns {number | null} the next one, if it is one of these and the only user
   */
  #follower(index, ops) {
    const after = index + 1;
    const node = this.#nodes[after];
    if (!node || this.#uses[after] !== 1 || !ops.includes(node.op)) return null;
    return node.inputs.length === 1 && node.inputs[0] === after ? after : null;
  }

  /**
   * What to apply to a node's result before storing it, and the last node that this includes.
   * @param {number} index
   * @param {Node} node
   * @returns {[number, Finish]}
   */
  #finish(index, node) {
    let last = index;
    let scaled = node;
    const fits = scalesTheFirstAxis(node.op, this.#shapes[index + 1]);
    // A second scale and shift stays a separate layer: merging two would round differently.
    if (!node.tensors.has("scale") && !node.tensors.has("shift") && fits) {
      const affine = this.#follower(index, ["affine"]);
      if (affine !== null) [last, scaled] = [affine, this.#nodes[affine]];
    }
    let limits = [-Infinity, Infinity];
    const following = this.#follower(last, ["relu", "hardtanh"]);
    if (following !== null) {
      last = following;
      limits = limitsOf(this.#nodes[following]);
    }
    for (let each = index; each <= last; each++) this.#done.add(each);
    const [low, high] = limits;
    return [last, [...this.#scalesOf(scaled, this.#shapes[index + 1]), low, high]];
  }

  /** @param {Node} node @param {Shape} shape @returns {Scales} */
  #scalesOf(node, shape) {
    const names = [node.tensors.get("scale"), node.tensors.get("shift")];
    if (names[0] === undefined && names[1] === undefined) return [0, 0, 0];
    const key = JSON.stringify(names);
    const known = this.#scales.get(key);
    if (known) return known;
    const channels = channelsOf(node.op, shape);
    const found = names.map((name) => (name === undefined ? undefined : this.#model.tensors.get(name)));
    const sets = Math.max(...found.map((tensor) => (tensor?.shape.length === 2 ? tensor.shape[0] : 1)));
    // Both for the same number of networks; a missing one gets its neutral value.
    const addresses = found.map((tensor, i) => {
      const values = new Float32Array(sets * channels).fill(i === 0 ? 1 : 0);
      if (tensor) {
        const own = numbersOf(this.#runtime.bytes(this.#file, this.#size), tensor);
        for (let at = 0; at < values.length; at += own.length) values.set(own, at);
      }
      return this.#stage(values);
    });
    /** @type {Scales} */
    const made = [addresses[0], addresses[1], sets];
    this.#scales.set(key, made);
    return made;
  }

  /**
   * The address of a layer's weights, how many sets there are, whether they are bits, and whether inputs are rounded.
   * @param {Node} node
   */
  #weights(node) {
    const name = /** @type {string} */ (node.tensors.get("weight"));
    const tensor = /** @type {Stored} */ (this.#model.tensors.get(name));
    const sets = ownPerNetwork(tensor, node.op, "weight") ? tensor.shape[0] : 1;
    const binary = tensor.dtype === "uint8";
    const rounds = this.#quantized && takesEightBits(node, tensor.dtype);
    return [binary ? this.#file + tensor.start : this.#floatsOf(name, tensor), sets, Number(binary), Number(rounds)];
  }

  /** @param {string} name @param {Stored} tensor */
  #floatsOf(name, tensor) {
    const start = this.#file + tensor.start;
    if (tensor.dtype === "float32" && start % 4 === 0) return start;
    const known = this.#floats.get(name);
    if (known !== undefined) return known;
    const address = this.#stage(numbersOf(this.#runtime.bytes(this.#file, this.#size), tensor));
    this.#floats.set(name, address);
    return address;
  }

  // ---- operations ----

  /** @param {number} index @param {Node} node */
  #add(index, node) {
    const input = node.inputs[0];
    const shape = this.#shapes[input];
    const output = this.#shapes[index + 1];
    const count = product(output);
    const { settings } = node;
    /** @type {(last: number, layout: Layout, place: number) => void} */
    const put = (last, layout, place) => void this.#places[layout].set(last + 1, place);
    switch (node.op) {
      case "linear": {
        const [address, ...weights] = this.#weights(node);
        const [last, finish] = this.#finish(index, node);
        const place = this.#get(input, "plain");
        const [outputs, features] = settings.shape;
        const rows = product(shape) / features;
        put(
          last,
          "plain",
          this.#runtime.call("linear", place, rows, features, outputs, address, ...weights, ...finish),
        );
        break;
      }
      case "conv2d": {
        const weights = this.#weights(node);
        const [last, finish] = this.#finish(index, node);
        const place = this.#get(input, "image");
        const [top, , left] = settings.padding;
        const sizes = [...shape, ...output, ...settings.shape.slice(2), ...settings.stride, top, left];
        const geometry = this.#stage(Uint32Array.from([...sizes, ...settings.dilation, settings.groups]));
        put(last, "image", this.#runtime.call("convolution", place, geometry, ...weights, ...finish));
        break;
      }
      case "max_pool2d":
      case "avg_pool2d":
      case "adaptive_max_pool2d":
      case "adaptive_avg_pool2d": {
        const axes = this.#stage(Uint32Array.from([1, 2].flatMap((axis) => poolAxis(node, axis - 1, shape[axis]))));
        const [last, finish] = this.#finish(index, node);
        const place = this.#get(input, "image");
        const average = Number(node.op.includes("avg"));
        put(last, "image", this.#runtime.call("pool", place, shape[0], axes, average, ...finish));
        break;
      }
      case "affine": {
        const [last, finish] = this.#finish(index, node);
        const [place, layout] = this.#present(input);
        const [channels, ...rest] = shape;
        const sizes = layout === "image" ? [product(rest), channels, 1] : [1, channels, product(rest)];
        put(last, layout, this.#runtime.call("affine", place, ...sizes, ...finish));
        break;
      }
      case "relu":
      case "hardtanh": {
        const [place, layout] = this.#present(input);
        put(index, layout, this.#runtime.call("affine", place, 1, count, 1, 0, 0, 0, ...limitsOf(node)));
        break;
      }
      case "tanh":
      case "sigmoid": {
        const [place, layout] = this.#present(input);
        put(index, layout, this.#runtime.call(`${node.op}_of`, place, count));
        break;
      }
      case "softmax": {
        const { axis } = settings;
        const place = this.#get(input, "plain");
        const sizes = [product(output.slice(0, axis)), output[axis], product(output.slice(axis + 1))];
        put(index, "plain", this.#runtime.call("softmax", place, ...sizes));
        break;
      }
      case "reshape":
        put(index, "plain", this.#get(input, "plain"));
        break;
      case "add": {
        const [first, layout] = this.#present(input);
        const second = this.#get(node.inputs[1], layout);
        const [last, [, , , low, high]] = this.#finish(index, node);
        put(last, layout, this.#runtime.call("add", first, second, count, low, high));
        break;
      }
      case "concat": {
        const { axis } = settings;
        const images = axis === 0 && shape.length === 3 && node.inputs.some((value) => this.#places.image.has(value));
        const layout = images ? "image" : "plain";
        const values = node.inputs.map((value) => this.#get(value, layout));
        const lengths = node.inputs.map((value) => {
          const part = this.#shapes[value];
          return images ? part[0] : product(part.slice(axis));
        });
        const outer = images ? product(shape.slice(1)) : product(shape.slice(0, axis));
        const parts = this.#stage(Uint32Array.from([...values, ...lengths]));
        put(index, layout, this.#runtime.call("concatenate", parts, values.length, outer));
        break;
      }
    }
  }
}

/** @param {Node} node @returns {number[]} */
const limitsOf = (node) => (node.op === "relu" ? [0, Infinity] : [node.settings.min, node.settings.max]);

/**
 * Windows, pixels, kernel (0: adaptive), stride, padding, dilation, and whether an average counts the padding.
 * @param {Node} node
 * @param {number} axis
 * @param {number} length
 */
function poolAxis({ settings }, axis, length) {
  if (settings.size) return [settings.size[axis], length, 0, 1, 0, 1, 0];
  const { kernel, stride, padding, dilation, ceil, count_padding: counted } = settings;
  const sizes = /** @type {const} */ ([kernel[axis], stride[axis], padding[axis], dilation?.[axis] ?? 1]);
  return [pooledSize(length, ...sizes, ceil), length, ...sizes, Number(Boolean(counted))];
}
