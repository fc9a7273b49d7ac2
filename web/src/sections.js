// What a model file of version 2 holds besides its network: the classes' labels, and sections of statistics.
import { need, quoted } from "./errors.js";
import { Real, areStrings, asFloat, isWhole, lengthOf, strictJson } from "./json.js";

/** @typedef {import("./json.js").Json} Json */
/** @typedef {string | number | bigint | boolean} Label */
/**
 * A rule by name, with its numbers, its arrays, and their shapes.
 * @typedef {{rule: string, numbers: Record<string, number | number[]>,
 *   tensors: Record<string, Float32Array | Uint8Array>, shapes: Record<string, number[]>}} Section
 */
/** @typedef {{shape: number[], data: Float32Array | Uint8Array}} SectionTensor */

export const SECTIONS = ["calibration", "conformal", "unfamiliarity"];
const MAX_LABELS = 2 ** 20;
const MAX_KEYS = 64;
const MAX_NUMBERS = 2 ** 16;
const MAX_WHOLE = 10n ** 17n;

/** @param {Json | undefined} value @returns {value is string} */
const isName = (value) => typeof value === "string" && value !== "" && lengthOf(value) <= 100;

/** @param {Json} value */
function isNumber(value) {
  if (value instanceof Real) return Number.isFinite(value.value);
  return isWhole(value) && BigInt(value) < MAX_WHOLE && BigInt(value) > -MAX_WHOLE;
}

/**
 * A section from its JSON.
 * @param {string} name @param {string} text
 * @param {(stored: string) => SectionTensor | null} take takes a tensor out of the file's
 * @returns {Section}
 */
export function sectionFrom(name, text, take) {
  const where = `the section ${name}`;
  const document = strictJson(text, where);
  const known = ["rule", "numbers", "tensors"];
  const whole = document.has("rule") && [...document.keys()].every((key) => known.includes(key));
  need(whole, () => `${where} needs a rule, and may have numbers and tensors`);
  const rule = document.get("rule");
  const numbers = document.get("numbers") ?? new Map();
  const keys = document.get("tensors") ?? [];
  need(document.get("numbers") !== null && numbers instanceof Map, () => `${where}: its numbers must be an object`);
  const names = document.get("tensors") !== null && areStrings(keys) && new Set(keys).size === keys.length;
  need(names, () => `${where}: its tensors must be a list of names`);
  const found = new Map();
  for (const key of keys) {
    const stored = `${name}:${key}`;
    const tensor = take(stored);
    need(tensor, () => `${where}: the file has no tensor ${quoted(stored.slice(0, 200))}`);
    found.set(key, tensor);
  }
  need(isName(rule), () => `${where}: its rule must be a text of 1 to 100 characters`);
  need(numbers.size + found.size <= MAX_KEYS, () => `${where}: at most ${MAX_KEYS} entries are allowed`);
  for (const [key, value] of numbers) {
    need(isName(key), () => `${where}: the names of its numbers must be text`);
    const list = Array.isArray(value) ? value : [value];
    const fine = list.length <= MAX_NUMBERS && list.every(isNumber);
    need(fine, () => `${where}: ${key} must be a finite number, or at most ${MAX_NUMBERS} of them`);
  }
  for (const [key, tensor] of found) {
    const once = isName(key) && !numbers.has(key);
    need(once, () => `${where}: the names of its tensors must be text, each there once`);
    need(tensor.shape.length <= 8, () => `${where}: ${key} must be an array of float32 or float16 or uint8`);
    need(tensor.data.every(Number.isFinite), () => `${where}: ${key} has NaN or infinite values`);
  }
  const plain = (/** @type {Json} */ value) => (Array.isArray(value) ? value.map(asFloat) : asFloat(value));
  return {
    rule,
    numbers: Object.fromEntries([...numbers].map(([key, value]) => [key, plain(value)])),
    tensors: Object.fromEntries([...found].map(([key, tensor]) => [key, tensor.data])),
    shapes: Object.fromEntries([...found].map(([key, tensor]) => [key, tensor.shape])),
  };
}

/** Labels from their JSON: of one type and distinct. @param {string} text @returns {Label[]} */
export function labelsFrom(text) {
  const document = strictJson(text, "the list of labels");
  const values = document.get("values");
  need(document.size === 1 && Array.isArray(values), () => "the labels must be a list of values");
  const kinds = new Set(
    values.map((value) => (isWhole(value) ? "whole" : value instanceof Real ? "real" : typeof value)),
  );
  const one = kinds.size === 1 && ["whole", "real", "string", "boolean"].includes([...kinds][0]);
  need(one, () => "labels must be all text, all numbers or all true/false");
  const fine = values.every((value) => typeof value === "string" || typeof value === "boolean" || isNumber(value));
  need(fine, () => "labels must be finite numbers");
  const labels = values.map((value) => /** @type {Label} */ (value instanceof Real ? value.value : value));
  need(new Set(labels).size === labels.length && labels.length <= MAX_LABELS, () => "labels must differ");
  return labels;
}
