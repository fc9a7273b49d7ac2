// The layer graph of a model file: the operations, what they need, and the shapes of their results. The rules are
// those of docs/format.md.
import { InvalidModel, need, quoted } from "./errors.js";
import { asFloat, isWhole } from "./json.js";

/** @typedef {import("./json.js").Json} Json */
/** @typedef {number[]} Shape */
/** @typedef {{dtype: "uint8" | "float16" | "float32", shape: Shape, start: number, bytes: number}} Stored */
/**
 * @typedef {{op: string, inputs: number[], name: string, raw: Map<string, Json>, tensors: Map<string, string>,
 *   settings: Settings}} Node
 */
/**
 * Checked settings; an operation has some of them.
 * @typedef {{shape: Shape, stride: number[], padding: number[], dilation: number[], kernel: number[], size: number[],
 *   groups: number, axis: number, min: number, max: number, ceil: boolean, count_padding: boolean}} Settings
 */
/**
 * @typedef {{inputShape: Shape, nodes: Node[], networks: number, task: string, logitScale: number, classes: string[],
 *   features: string[]}} Graph
 */

export const MAX_ELEMENTS = 2 ** 28;
const MAX_NODES = 2 ** 16;
const MAX_NETWORKS = 2 ** 12;
const LARGEST = 2 ** 20; // of a kernel, a stride, a padding or a dilation
const MAX_POOLED = 2 ** 16;
const MAX_QUANTIZED = 2 ** 23;

/** @param {readonly number[]} sizes */
export const product = (sizes) => sizes.reduce((a, b) => a * b, 1);

/** A shape as text. @param {readonly number[]} shape */
export const shown = (shape) => `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;

/** @param {readonly number[]} a @param {readonly number[]} b */
const same = (a, b) => a.length === b.length && a.every((size, i) => size === b[i]);

// ---- settings: what a number must look like. A check returns the value to use, or undefined. ----

/** @param {Json} value @param {number} least @param {number} most */
const whole = (value, least, most) => (isWhole(value) && value >= least && value <= most ? Number(value) : undefined);

/** @param {Json} value @param {number} least @param {number} most @returns {number[] | undefined} */
const wholes = (value, least, most) =>
  Array.isArray(value) && value.every((each) => whole(each, least, most) !== undefined) ? value.map(Number) : undefined;

/** @param {number} count @param {number} least */
const numbers = (count, least) => (/** @type {Json} */ value) => {
  const found = wholes(value, least, LARGEST);
  return found?.length === count ? found : undefined;
};

/** @param {number} least @param {number} most how many sizes */
const sizes = (least, most) => (/** @type {Json} */ value) => {
  const found = wholes(value, 1, MAX_ELEMENTS);
  return found && found.length >= least && found.length <= most && product(found) <= MAX_ELEMENTS ? found : undefined;
};

const pair = numbers(2, 1);
const gaps = numbers(2, 0);
const shapeOfAnyRank = sizes(1, 8);
const flag = (/** @type {Json} */ value) => (typeof value === "boolean" ? value : undefined);
const axis = (/** @type {Json} */ value) => whole(value, 0, 7);
const finite = (/** @type {Json} */ value) => (Number.isFinite(asFloat(value)) ? asFloat(value) : undefined);

// ---- shapes --------------------------------------------------------------------------------------

/** The input's shape does not fit; the text says what is needed. */
class Misfit extends Error {}

/** @param {unknown} condition @param {string} otherwise @returns {asserts condition} */
function fit(condition, otherwise) {
  if (!condition) throw new Misfit(otherwise);
}

/** @param {Shape} shape */
function image(shape) {
  fit(shape.length === 3, "an image [channels, height, width] is needed");
  return shape;
}

/**
 * How many windows a pooling layer has along an axis of n, as torch counts them.
 * @param {number} n @param {number} kernel @param {number} stride @param {number} padding @param {number} dilation
 * @param {boolean} ceil
 */
export function pooledSize(n, kernel, stride, padding, dilation, ceil) {
  const span = n + 2 * padding - dilation * (kernel - 1) - 1;
  const count = Math.floor((span + (ceil ? stride - 1 : 0)) / stride) + 1;
  // With ceil, a last window that would start in the padding on the right is omitted.
  return ceil && (count - 1) * stride >= n + padding ? count - 1 : count;
}

/** @param {number} channels @param {number[]} counts */
function pooled(channels, counts) {
  const most = Math.max(...counts);
  fit(most <= MAX_POOLED, `${MAX_POOLED} windows along an axis are allowed, not ${most}`);
  return [channels, ...counts];
}

/** @typedef {(s: Settings, inputs: Shape[]) => Shape} ShapeRule */

/** @type {Record<string, ShapeRule>} */
const RULES = {
  same: (_, [x]) => x,
  linear(s, [x]) {
    const [out, features] = s.shape;
    fit(x[x.length - 1] === features, `${features} features are needed`);
    return [...x.slice(0, -1), out];
  },
  conv2d(s, [x]) {
    const [channels, ...size] = image(x);
    const [out, perGroup, ...kernel] = s.shape;
    const fits = channels === perGroup * s.groups && out % s.groups === 0;
    fit(fits, `${perGroup * s.groups} channels are needed, and outputs in ${s.groups} equal groups`);
    const counts = size.map((n, i) => {
      const padded = n + s.padding[2 * i] + s.padding[2 * i + 1];
      return Math.floor((padded - s.dilation[i] * (kernel[i] - 1) - 1) / s.stride[i]) + 1;
    });
    fit(Math.min(...counts) >= 1, `a window of ${shown(kernel)} does not fit`);
    return [out, ...counts];
  },
  pool(s, [x]) {
    const [channels, ...size] = image(x);
    fit(
      s.padding.every((p, i) => 2 * p <= s.kernel[i]),
      "the padding may be at most half of the kernel",
    );
    const counts = size.map((n, i) =>
      pooledSize(n, s.kernel[i], s.stride[i], s.padding[i], s.dilation?.[i] ?? 1, s.ceil),
    );
    fit(Math.min(...counts) >= 1, `a window of ${shown(s.kernel)} does not fit`);
    return pooled(channels, counts);
  },
  adaptive: (s, [x]) => pooled(image(x)[0], s.size),
  reshape(s, [x]) {
    fit(product(s.shape) === product(x), `${product(s.shape)} elements are needed`);
    return s.shape;
  },
  add(_, [x, y]) {
    fit(same(x, y), "two values of the same shape are needed");
    return x;
  },
  concat(s, inputs) {
    const rest = (/** @type {Shape} */ shape) => shape.filter((_, i) => i !== s.axis);
    const first = inputs[0];
    for (const x of inputs) {
      const joins = s.axis < first.length && x.length === first.length && same(rest(x), rest(first));
      fit(joins, `values of the same shape except for axis ${s.axis} are needed`);
    }
    return first.map((n, i) => (i === s.axis ? inputs.reduce((sum, x) => sum + x[i], 0) : n));
  },
  softmax(s, [x]) {
    fit(s.axis < x.length, `an axis ${s.axis} is needed`);
    return x;
  },
};

/**
 * What an operation takes: how many inputs (0: one or more), settings and tensors; the shape of its result, and the
 * axis that a scale and a shift apply to: the first (0), the last (-1), or none.
 * @typedef {{inputs: number, settings: Record<string, (value: Json) => unknown>, tensors: string[], shape: ShapeRule,
 *   channels: number | null}} Operation
 */

/**
 * @param {ShapeRule} shape @param {Operation["settings"]} [settings] @param {string[]} [tensors]
 * @param {number | null} [channels] @param {number} [inputs]
 * @returns {Operation}
 */
const operation = (shape, settings = {}, tensors = [], channels = null, inputs = 1) => ({
  inputs,
  settings,
  tensors,
  shape,
  channels,
});

const WEIGHTED = ["weight", "scale", "shift"];
const WINDOW = { kernel: pair, stride: pair, padding: gaps, ceil: flag };
const CONVOLUTION = {
  shape: sizes(4, 4),
  stride: pair,
  padding: numbers(4, 0),
  dilation: pair,
  groups: (/** @type {Json} */ value) => whole(value, 1, MAX_ELEMENTS),
};

/** @type {Map<string, Operation>} */
const OPERATIONS = new Map(
  Object.entries({
    linear: operation(RULES.linear, { shape: sizes(2, 2) }, WEIGHTED, -1),
    conv2d: operation(RULES.conv2d, CONVOLUTION, WEIGHTED, 0),
    affine: operation(RULES.same, {}, ["scale", "shift"], 0),
    relu: operation(RULES.same),
    tanh: operation(RULES.same),
    sigmoid: operation(RULES.same),
    hardtanh: operation(RULES.same, { min: finite, max: finite }),
    softmax: operation(RULES.softmax, { axis }),
    max_pool2d: operation(RULES.pool, { ...WINDOW, dilation: pair }, [], 0),
    avg_pool2d: operation(RULES.pool, { ...WINDOW, count_padding: flag }, [], 0),
    adaptive_max_pool2d: operation(RULES.adaptive, { size: pair }, [], 0),
    adaptive_avg_pool2d: operation(RULES.adaptive, { size: pair }, [], 0),
    reshape: operation(RULES.reshape, { shape: shapeOfAnyRank }),
    add: operation(RULES.add, {}, [], null, 2),
    concat: operation(RULES.concat, { axis }, [], null, 0),
  }),
);

// ---- checking ------------------------------------------------------------------------------------

/** How messages name a node. @param {number} index @param {Node} node */
export const place = (index, node) => `node ${index} (${node.op}${node.name ? ` ${quoted(node.name)}` : ""})`;

/**
 * Checks every node against the rules above and the stored tensors.
 * @param {Graph} graph @param {Map<string, Stored>} stored
 * @returns {Shape[]} the shape of every value
 */
export function checkGraph(graph, stored) {
  const { networks, inputShape, nodes, logitScale, task, classes, features } = graph;
  need(networks >= 1 && networks <= MAX_NETWORKS, () => `${networks} networks: 1 to ${MAX_NETWORKS} are allowed`);
  const fits = shapeOfAnyRank(inputShape);
  need(fits, () => `input shape ${shown(inputShape)}: 1 to 8 sizes of at least 1 are needed`);
  need(nodes.length >= 1 && nodes.length <= MAX_NODES, () => `${nodes.length} nodes: 1 to ${MAX_NODES} are allowed`);
  const scaled = logitScale >= 2 ** -149 && logitScale <= (2 - 2 ** -23) * 2 ** 127;
  need(scaled, () => `logit scale ${logitScale}: it must be a finite number above 0 in float32`);
  const known = task === "classification" || task === "regression";
  need(known, () => `task ${quoted(task)}: it must be 'classification' or 'regression'`);
  const shapes = [inputShape];
  nodes.forEach((node, index) => shapes.push(checkNode(graph, index, node, shapes, stored)));
  const output = shapes[shapes.length - 1];
  const outputs = output[output.length - 1];
  const expected = outputs === 1 ? 2 : outputs; // a single logit is that of class 1 of two
  need(!classes.length || classes.length === expected, () => `${classes.length} class names for ${expected} classes`);
  need(
    !features.length || same(inputShape, [features.length]),
    () => `${features.length} column names for inputs of shape ${shown(inputShape)}`,
  );
  return shapes;
}

/**
 * @param {Graph} graph @param {number} index @param {Node} node @param {Shape[]} shapes
 * @param {Map<string, Stored>} stored
 */
function checkNode(graph, index, node, shapes, stored) {
  const known = OPERATIONS.get(node.op);
  need(known, () => `${place(index, node)}: unknown operation.`);
  const { inputs } = node;
  const enough = inputs.length > 0 && (known.inputs === 0 || inputs.length === known.inputs);
  need(enough, () => `${place(index, node)}: ${inputs.length} inputs, it takes ${known.inputs || "at least 1"}`);
  const earlier = inputs.every((value) => value <= index);
  need(earlier, () => `${place(index, node)}: inputs [${inputs.join(", ")}] must be values 0 to ${index}`);
  const keys = Object.keys(known.settings);
  const complete = node.raw.size === keys.length && keys.every((key) => node.raw.has(key));
  need(complete, () => {
    const list = (/** @type {string[]} */ names) => `[${names.sort().map(quoted).join(", ")}]`;
    return `${place(index, node)}: settings ${list([...node.raw.keys()])}, it takes ${list(keys)}`;
  });
  /** @type {Record<string, unknown>} */
  const settings = {};
  for (const key of keys) {
    settings[key] = known.settings[key](/** @type {Json} */ (node.raw.get(key)));
    need(settings[key] !== undefined, () => `${place(index, node)}: ${key} is not allowed`);
  }
  node.settings = /** @type {Settings} */ (settings);
  need(!(node.settings.min > node.settings.max), () => `${place(index, node)}: min is above max`);
  const given = inputs.map((value) => shapes[value]);
  let shape;
  try {
    shape = known.shape(node.settings, given);
  } catch (error) {
    if (!(error instanceof Misfit)) throw error;
    throw new InvalidModel(`${place(index, node)}: its input has shape ${shown(given[0])}, but ${error.message}`);
  }
  const elements = product(shape);
  need(elements <= MAX_ELEMENTS, () => `${place(index, node)}: ${elements} elements, ${MAX_ELEMENTS} are allowed`);
  checkTensors(graph, index, node, known, shape, stored);
  return shape;
}

/**
 * @param {Graph} graph @param {number} index @param {Node} node @param {Operation} known @param {Shape} shape
 * @param {Map<string, Stored>} stored
 */
function checkTensors(graph, index, node, known, shape, stored) {
  const required = node.op === "affine" ? known.tensors : known.tensors.slice(0, 1);
  for (const role of required) need(node.tensors.has(role), () => `${place(index, node)}: it has no ${role}`);
  for (const [role, name] of node.tensors) {
    need(known.tensors.includes(role), () => `${place(index, node)}: it takes no ${quoted(role)}`);
    const tensor = stored.get(name);
    need(tensor, () => `${place(index, node)}: the file has no tensor ${quoted(name)}`);
    const weight = role === "weight";
    const [out, ...rest] = weight ? node.settings.shape : [channelsOf(node.op, shape)];
    const expected = weight && tensor.dtype === "uint8" ? [out, Math.ceil(product(rest) / 8)] : [out, ...rest];
    const types = weight ? ["uint8", "float32", "float16"] : ["float32"];
    const fits =
      types.includes(tensor.dtype) &&
      (same(tensor.shape, expected) || same(tensor.shape, [graph.networks, ...expected]));
    need(
      fits,
      () =>
        `${place(index, node)}: ${role} is ${tensor.dtype} [${tensor.shape.join(", ")}], but ${types.join(" or ")} ` +
        `[${expected.join(", ")}] is needed (or one for each of ${graph.networks} networks)`,
    );
  }
}

/** How many scales and shifts an operation with this output shape has. @param {string} op @param {Shape} shape */
export const channelsOf = (op, shape) => (OPERATIONS.get(op)?.channels === 0 ? shape[0] : shape[shape.length - 1]);

/**
 * Whether a scale and a shift of an operation mean the first axis of its result.
 * @param {string} op @param {Shape} shape its result's
 */
export function scalesTheFirstAxis(op, shape) {
  const axis = OPERATIONS.get(op)?.channels;
  return axis === 0 || (axis === -1 && shape.length === 1);
}

/**
 * Whether each network has its own copy of a tensor.
 * @param {Stored} tensor
 * @param {string} op
 * @param {string} role
 */
export function ownPerNetwork(tensor, op, role) {
  const shared = role !== "weight" ? 1 : tensor.dtype === "uint8" || op === "linear" ? 2 : 4;
  return tensor.shape.length === shared + 1;
}

/** Whether the int8 mode rounds this layer's input. @param {Node} node @param {string} dtype its weight's */
export const takesEightBits = (node, dtype) =>
  dtype === "uint8" && (node.settings.groups ?? 1) === 1 && product(node.settings.shape.slice(1)) <= MAX_QUANTIZED;
