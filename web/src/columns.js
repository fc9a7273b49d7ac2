// How the rows of a table become the numbers that a network takes: the columns as the file describes them, and checks.
import { need, quoted } from "./errors.js";
import { Real, areStrings, asFloat, lengthOf, strictJson } from "./json.js";

/** @typedef {import("./json.js").Json} Json */
/**
 * What a form needs to be drawn, and what an encoder needs to run. Numbers and dates (seconds since 1970) have `range`,
 * `knots` and `codes`; categories have `categories` and `other`; dates `cycles` and `order`.
 * @typedef {{kind: "number" | "category" | "boolean" | "date", name: string, missing: boolean, height: number,
 *   range: [number, number], knots: number[], codes: string[], whole: boolean, categories: string[], other: boolean,
 *   cycles: string[], order: "ymd" | "dmy" | "mdy", valueCodes: number, width: number}} Column
 */
/** @typedef {{columns: Column[], ignored: string[], width: number}} Encoding */

/** Seconds after which a part of a date is the same again. @type {Record<string, number>} */
export const CYCLES = { year: 365.2425 * 86400, week: 7 * 86400, day: 86400 };
const CODES = ["line", "rank", "ramps"];
const ORDERS = ["ymd", "dmy", "mdy"];
const MAX_COLUMNS = 2 ** 16;
const MAX_CATEGORIES = 2 ** 12;
const MAX_KNOTS = 2 ** 10;
const MAX_WIDTH = 2 ** 20;
const MAX_NAME = 2 ** 10;
const MAX_SECONDS = 400 * CYCLES.year * 30;

const SCALE = ["range", "knots", "codes"];
/** The settings of each kind, besides those that all have. @type {Record<string, string[]>} */
const KINDS = {
  number: [...SCALE, "whole"],
  category: ["categories", "other"],
  boolean: [],
  date: [...SCALE, "cycles", "order"],
};

/** @param {string} text the file's JSON @returns {Encoding} */
export function encodingFrom(text) {
  const document = strictJson(text, "the encoding");
  const keys = [...document.keys()];
  const known = document.has("columns") && keys.every((key) => key === "columns" || key === "ignored");
  need(known, () => `the encoding has the keys ${keys.sort().slice(0, 5).map(quoted)}, not columns and ignored`);
  const entries = document.get("columns");
  const ignored = document.has("ignored") ? document.get("ignored") : [];
  const listed = Array.isArray(entries) && entries.length <= MAX_COLUMNS;
  need(listed, () => `the encoding needs a list of 1 to ${MAX_COLUMNS} columns`);
  const names = areStrings(ignored) && ignored.every((name) => lengthOf(name) <= MAX_NAME);
  need(names, () => "the encoding's ignored columns must be a list of names");
  const columns = entries.map(columnFrom);
  const some = columns.length >= 1 && ignored.length <= MAX_COLUMNS;
  need(some, () => `the encoding: ${columns.length} columns: 1 to ${MAX_COLUMNS} are allowed`);
  const all = [...columns.map((column) => column.name), ...ignored];
  need(new Set(all).size === all.length, () => "the encoding: two columns have the same name");
  const width = columns.reduce((sum, column) => sum + column.width, 0);
  need(width <= MAX_WIDTH, () => `the encoding: ${width} codes: at most ${MAX_WIDTH} are allowed`);
  return { columns, ignored, width };
}

/** @param {Json} document @param {number} place @returns {Column} */
function columnFrom(document, place) {
  need(document instanceof Map, () => `column ${place} is no object`);
  const kind = document.get("kind");
  const known = typeof kind === "string" && Object.hasOwn(KINDS, kind);
  need(known, () => `column ${place}: its kind must be one of ${Object.keys(KINDS).join(", ")}`);
  const allowed = ["kind", "name", "missing", "height", ...KINDS[kind]];
  for (const key of document.keys())
    need(allowed.includes(key), () => `column ${place}: a ${kind} has no ${quoted(key)}`);
  const name = document.get("name");
  need(document.has("name"), () => `column ${place} has no name`);
  /** @param {boolean} condition @param {string} otherwise */
  const require = (condition, otherwise) =>
    need(condition, () => `column ${place} (${quoted(name).slice(0, 100)}): ${otherwise}`);

  /** @param {string} key @param {Json} usual @returns {any} */
  const setting = (key, usual) => (document.has(key) ? document.get(key) : usual);
  /** @param {string} key */
  const flag = (key) => {
    const value = setting(key, false);
    require(typeof value === "boolean", `${key} must be true or false`);
    return value;
  };
  /**
   * Floating-point numbers, whole ones included; null if they are anything else.
   * @param {string} key
   * @param {Json} usual
   */
  const numbers = (key, usual) => {
    const list = setting(key, usual);
    const found = Array.isArray(list) ? list.map(asFloat) : [NaN];
    return found.every(Number.isFinite) ? found : null;
  };

  require(typeof name === "string" && lengthOf(name) <= MAX_NAME, "its name must be text of 1,024 characters");
  const missing = flag("missing");
  const height = asFloat(setting("height", new Real(1)));
  require(height >= 2 ** -126 && height <= 2 ** 127, "height: a number above 0 is needed");
  const column = /** @type {Column} */ ({ kind, name, missing, height, valueCodes: 1 });
  if (KINDS[kind].includes("knots")) {
    const range = numbers("range", [0, 0]);
    const knots = numbers("knots", [0, 1]);
    const codes = setting("codes", ["line", "rank"]);
    require(range?.length === 2 && range[0] <= range[1], "its range must be two numbers");
    const some = knots !== null && knots.length >= 1 && knots.length <= MAX_KNOTS;
    require(some, `1 to ${MAX_KNOTS} finite knots are allowed`);
    const steps = /** @type {number[]} */ (knots).slice(1).map((knot, i) => knot - /** @type {number[]} */ (knots)[i]);
    require(steps.every((step) => step >= 2 ** -1000 && step < Infinity), "its knots must ascend");
    require(areSomeOf(codes, CODES) && codes.length > 0, `codes must be some of ${CODES.join(", ")}, in this order`);
    require(steps.length > 0 || codes.join() === "line", "a single knot has one code, line");
    Object.assign(column, { range, knots, codes });
    column.valueCodes = codes.length + (codes.includes("ramps") ? steps.length - 1 : 0);
  }
  if (kind === "number") column.whole = flag("whole");
  if (kind === "category") {
    const categories = setting("categories", []);
    column.other = flag("other");
    column.valueCodes = categories?.length + Number(column.other);
    const few = Array.isArray(categories) && column.valueCodes >= 1 && column.valueCodes <= MAX_CATEGORIES;
    require(few, `1 to ${MAX_CATEGORIES} categories are allowed`);
    const text = areStrings(categories) && categories.every((each) => each !== "" && lengthOf(each) <= MAX_NAME);
    require(text, `a category must be text of 1 to ${MAX_NAME} characters`);
    require(new Set(categories).size === categories.length, "a category is there twice");
    column.categories = categories;
  }
  if (kind === "date") {
    const near = [...column.range, ...column.knots].every((seconds) => Math.abs(seconds) <= MAX_SECONDS);
    require(near, "its dates are out of range");
    const cycles = setting("cycles", []);
    require(areSomeOf(
      cycles,
      Object.keys(CYCLES),
    ), `cycles must be among ${Object.keys(CYCLES).join(", ")}, in this order`);
    const order = setting("order", "ymd");
    require(ORDERS.includes(order), "order must be ymd, dmy or mdy");
    Object.assign(column, { cycles, order });
    column.valueCodes += 2 * cycles.length;
  }
  column.width = column.valueCodes + Number(missing);
  return column;
}

/**
 * Whether these are some of the names, in their order.
 * @param {Json} values
 * @param {string[]} names
 * @returns {values is string[]}
 */
function areSomeOf(values, names) {
  return Array.isArray(values) && values.join("\0") === names.filter((name) => values.includes(name)).join("\0");
}
