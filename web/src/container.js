// The model file: a safetensors file whose metadata holds the layer graph and a checksum. Every size that the file
// claims is checked against the size of the file before anything is allocated.
import { InvalidModel, TooMuchMemory, need, quoted } from "./errors.js";
import { encodingFrom } from "./columns.js";
import { checkGraph, place, product, shown } from "./graph.js";
import { Real, areStrings, asFloat, isWhole, naturals, strictJson } from "./json.js";
import { SECTIONS, labelsFrom, sectionFrom } from "./sections.js";

/** @typedef {import("./json.js").Json} Json */
/** @typedef {import("./graph.js").Graph} Graph */
/** @typedef {import("./graph.js").Node} Node */
/** @typedef {import("./graph.js").Stored} Stored */
/**
 * Where the checked file is: its bytes, and what looks into them.
 * @typedef {{bytes: Uint8Array, digest: (zeroed: number) => string, allFinite: (tensor: Stored) => boolean}} Staged
 */
/**
 * `graph` with the shape of every value; tensors say where they are in the file.
 * @typedef {{graph: Graph, shapes: number[][], tensors: Map<string, Stored>, checksum: string, version: number,
 *   residual: number | null, encoding: import("./columns.js").Encoding | null,
 *   labels: import("./sections.js").Label[] | null,
 *   sections: Record<string, import("./sections.js").Section>}} ModelFile
 */

const KIND = "bayesbinn model";
const VERSION = 2;
const MAX_HEADER = 2 ** 23;
const TYPES = new Map(
  Object.entries({
    U8: { dtype: /** @type {const} */ ("uint8"), size: 1 },
    F16: { dtype: /** @type {const} */ ("float16"), size: 2 },
    F32: { dtype: /** @type {const} */ ("float32"), size: 4 },
  }),
);
const ROLES = ["weight", "scale", "shift"];
const GRAPH_KEYS = ["classes", "features", "input_shape", "logit_scale", "networks", "nodes", "task"];

/**
 * Reads and checks a file; any fault is an `InvalidModel`.
 * @param {Uint8Array} bytes @param {number} maxMemory
 * @param {(bytes: Uint8Array) => Staged} stage copies the file to where it is used
 * @returns {ModelFile}
 */
export function readModel(bytes, maxMemory, stage) {
  const size = bytes.length;
  need(size >= 8, () => "it is cut off: a model file starts with an 8-byte length");
  const view = new DataView(bytes.buffer, bytes.byteOffset, size);
  const length = view.getUint32(4, true) * 2 ** 32 + view.getUint32(0, true);
  need(length <= MAX_HEADER, () => `its header has ${length} bytes, ${MAX_HEADER} are allowed; it is not a model file`);
  need(length <= size - 8, () => `it is cut off: it has ${size} bytes, and just the header needs ${length + 8}`);
  const header = strictJson(decoded(bytes.subarray(8, 8 + length)), "the header");
  const metadata = header.get("__metadata__");
  header.delete("__metadata__");
  const right = metadata instanceof Map && metadata.get("format") === KIND;
  need(right, () => `it is not a ${KIND}; write one with bb.pack`);
  const version = checkedVersion(metadata.get("version"));
  const tensors = checkedSizes(header, 8 + length, size);
  if (size > maxMemory) throw new TooMuchMemory(`the file has ${size} bytes, maxMemory allows ${maxMemory}; raise it`);
  const staged = stage(bytes);
  const checksum = checkedDigits(staged, length, metadata.get("checksum"));
  const text = metadata.get("graph");
  need(typeof text === "string", () => "its metadata has no graph");
  need(areStrings([...metadata.values()]), () => "its metadata must be strings");
  const entries = /** @type {Map<string, string>} */ (metadata);
  const graph = parsedGraph(strictJson(text, "the graph"));
  const residual = checkedResidual(entries.get("residual"), graph.task);
  /** @type {ModelFile} */
  const model = { graph, shapes: [], tensors, checksum, version, residual, encoding: null, labels: null, sections: {} };
  if (version > 1) {
    const encoding = entries.get("encoding");
    const labels = entries.get("labels");
    if (encoding !== undefined) model.encoding = encodingFrom(encoding);
    if (labels !== undefined) model.labels = labelsFrom(labels);
    for (const name of SECTIONS) {
      const section = entries.get(name);
      if (section !== undefined)
        model.sections[name] = sectionFrom(name, section, (key) => taken(staged, tensors, key));
    }
  }
  checkModel(model, staged);
  return model;
}

/** @param {Uint8Array} bytes */
function decoded(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new InvalidModel("the header is not JSON (it is not UTF-8): the file is damaged or of another kind");
  }
}

/** @param {Json | undefined} version */
function checkedVersion(version) {
  const known = typeof version === "string" && /^[1-9][0-9]{0,8}$/.test(version);
  need(known, () => `version ${quoted(version)}: it must be a whole number, at least 1`);
  const later = () => `its format version is ${version}, this installation reads up to ${VERSION}; update bayesbinn`;
  need(Number(version) <= VERSION, later);
  return Number(version);
}

/**
 * Every tensor's type, shape and place; together they fill the file without gaps or overlaps.
 * @param {Map<string, Json>} header @param {number} first where the tensors start @param {number} size of the file
 */
function checkedSizes(header, first, size) {
  const available = size - first;
  /** @type {Map<string, Stored>} */
  const tensors = new Map();
  for (const [name, entry] of header) {
    const known = ["dtype", "shape", "data_offsets"];
    const whole = entry instanceof Map && entry.size === 3 && known.every((key) => entry.has(key));
    need(whole, () => `tensor ${quoted(name)} needs a dtype, a shape and data_offsets`);
    const kind = entry.get("dtype");
    const type = typeof kind === "string" ? TYPES.get(kind) : undefined;
    need(type, () => `tensor ${quoted(name)}: its type must be one of ['U8', 'F16', 'F32']`);
    const shape = naturals(entry.get("shape"));
    need(shape, () => `tensor ${quoted(name)}: its shape must be a list of sizes`);
    const offsets = naturals(entry.get("data_offsets"));
    need(offsets?.length === 2, () => `tensor ${quoted(name)}: its offsets must be two numbers`);
    const [start, end] = offsets;
    const inside = start <= end && end <= available;
    need(inside, () => `it is cut off: tensor ${quoted(name)} ends at byte ${end} of ${available}`);
    const bytes = type.size * product(shape);
    need(end - start === bytes, () => `tensor ${quoted(name)}: ${end - start} bytes for a shape that needs ${bytes}`);
    tensors.set(name, { dtype: type.dtype, shape, start: first + start, bytes });
  }
  let last = first;
  const places = [...tensors].sort(([, a], [, b]) => a.start - b.start || a.bytes - b.bytes);
  for (const [name, { start, bytes }] of places) {
    need(
      start === last,
      () => `tensor ${quoted(name)} starts at byte ${start - first}, the one before it ends at byte ${last - first}`,
    );
    last = start + bytes;
  }
  need(last === size, () => `it has ${available} bytes of tensors, the header describes ${last - first}`);
  return tensors;
}

/** @param {Staged} staged @param {number} length of the header @param {Json | undefined} digits */
function checkedDigits(staged, length, digits) {
  const fine = typeof digits === "string" && /^[0-9a-f]{64}$/.test(digits);
  need(fine, () => "its checksum must be 64 hexadecimal digits");
  const header = staged.bytes.subarray(8, 8 + length);
  const pattern = new TextEncoder().encode(`"${digits}"`);
  const places = [];
  for (let at = header.indexOf(pattern[0]); at >= 0; at = header.indexOf(pattern[0], at + 1)) {
    if (pattern.every((byte, i) => header[at + i] === byte)) places.push(at);
  }
  need(places.length === 1, () => "its checksum must occur in the header exactly once");
  const matches = staged.digest(8 + places[0] + 1) === digits;
  need(matches, () => "its checksum does not match: the file is damaged; copy or pack it again");
  return digits;
}

/** @param {string | undefined} text @param {string} task */
function checkedResidual(text, task) {
  if (text === undefined) return null;
  const decimal = /^[0-9]{1,18}(\.[0-9]{1,18})?(e[+-]?[0-9]{1,3})?$/.test(text);
  need(decimal, () => `its residual ${quoted(text.slice(0, 40))} is not a decimal number`);
  need(task === "regression", () => "only a regression has a residual");
  need(Number.isFinite(Number(text)), () => `its residual ${text} must be a finite number, at least 0`);
  return Number(text);
}

/** @param {Map<string, Json>} document @returns {Graph} */
function parsedGraph(document) {
  const keys = [...document.keys()].sort();
  const list = (/** @type {string[]} */ names) => `[${names.map(quoted).join(", ")}]`;
  need(keys.join() === GRAPH_KEYS.join(), () => `the graph has the keys ${list(keys)}, not ${list(GRAPH_KEYS)}`);
  const [classes, features, shape, scale, networks, nodes, task] = GRAPH_KEYS.map((key) => document.get(key));
  need(areStrings(classes), () => "classes must be a list of strings");
  need(areStrings(features), () => "features must be a list of strings");
  need(isWhole(networks), () => "networks: a whole number is needed");
  need(isWhole(scale) || scale instanceof Real, () => "logit_scale: a number is needed");
  need(typeof task === "string", () => "task: a string is needed");
  const inputShape = naturals(shape);
  need(inputShape, () => "input_shape: sizes are needed");
  need(Array.isArray(nodes), () => "nodes must be a list");
  const logitScale = asFloat(scale);
  return { inputShape, nodes: nodes.map(parsedNode), networks: Number(networks), task, logitScale, classes, features };
}

/** @param {Json} entry @param {number} index @returns {Node} */
function parsedNode(entry, index) {
  need(entry instanceof Map, () => `node ${index} is not an object`);
  const raw = new Map(entry);
  const name = raw.has("name") ? raw.get("name") : "";
  const op = raw.get("op");
  const named = typeof op === "string" && typeof name === "string";
  need(named, () => `node ${index}: its op and its name must be strings`);
  const inputs = naturals(raw.get("inputs"));
  need(inputs, () => `node ${index} (${op}): its inputs must be numbers of values`);
  const tensors = new Map(ROLES.filter((role) => raw.has(role)).map((role) => [role, raw.get(role)]));
  need(areStrings([...tensors.values()]), () => `node ${index} (${op}): its tensors must be names`);
  for (const key of ["op", "name", "inputs", ...ROLES]) raw.delete(key);
  const settings = /** @type {Node["settings"]} */ ({});
  return { op, inputs, name, raw, tensors: /** @type {Map<string, string>} */ (tensors), settings };
}

/**
 * A section's tensor, out of those of the network.
 * @param {Staged} staged
 * @param {Map<string, Stored>} tensors
 * @param {string} name
 */
function taken(staged, tensors, name) {
  const tensor = tensors.get(name);
  if (!tensor) return null;
  tensors.delete(name);
  return { shape: tensor.shape, data: numbersOf(staged.bytes, tensor) };
}

/** A copy of a tensor's numbers, bits as bytes. @param {Uint8Array} file @param {Stored} tensor */
export function numbersOf(file, tensor) {
  const own = file.slice(tensor.start, tensor.start + tensor.bytes);
  if (tensor.dtype === "uint8") return own;
  return tensor.dtype === "float32"
    ? new Float32Array(own.buffer)
    : Float32Array.from(new Uint16Array(own.buffer), half);
}

/** A 16-bit floating-point number from its bits. @param {number} bits */
function half(bits) {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const size =
    exponent === 0
      ? fraction * 2 ** -24
      : exponent === 31
        ? fraction
          ? NaN
          : Infinity
        : (1024 + fraction) * 2 ** (exponent - 25);
  return bits & 0x8000 ? -size : size;
}

/**
 * The graph against its tensors, their values, and what else the file holds against the graph.
 * @param {ModelFile} model
 * @param {Staged} staged
 */
function checkModel(model, staged) {
  const { graph, tensors, encoding, labels } = model;
  model.shapes = checkGraph(graph, tensors);
  if (encoding) {
    const { width } = encoding;
    const fits = graph.inputShape.length === 1 && graph.inputShape[0] === width;
    need(fits, () => `an encoding of ${width} codes for inputs of shape ${shown(graph.inputShape)}`);
    need(!graph.features.length, () => "a file with an encoding has no other names of columns");
  }
  const names = graph.classes.length;
  need(!labels || labels.length === names, () => `${labels?.length} labels for ${names} class names`);
  const used = new Set();
  const checked = new Set(); // many nodes may share a tensor
  graph.nodes.forEach((node, index) => {
    for (const [role, name] of node.tensors) {
      used.add(name);
      const tensor = /** @type {Stored} */ (tensors.get(name));
      if (role !== "weight" || tensor.dtype !== "uint8") continue;
      const count = product(node.settings.shape.slice(1));
      const key = `${count} ${name}`;
      const fine = checked.has(key) || paddingIsZero(staged.bytes, tensor, count);
      need(fine, () => `${place(index, node)}: the bits after the last weight of a row are not 0`);
      checked.add(key);
    }
  });
  for (const [name, tensor] of tensors) {
    need(used.has(name), () => `tensor ${quoted(name)} belongs to no node`);
    const fine = tensor.dtype === "uint8" || staged.allFinite(tensor);
    need(fine, () => `tensor ${quoted(name)} has NaN or infinite values`);
  }
}

/** @param {Uint8Array} file @param {Stored} tensor @param {number} weights of a row */
function paddingIsZero(file, tensor, weights) {
  const bits = weights % 8;
  const row = Math.ceil(weights / 8);
  if (bits) {
    for (let last = row - 1; last < tensor.bytes; last += row) if (file[tensor.start + last] >> bits) return false;
  }
  return true;
}
