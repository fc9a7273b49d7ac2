// JSON from a file that may be damaged or hostile. JSON.parse would keep the last of two equal keys, and would not
// tell 1 from 1.0, which are different in the format.
import { InvalidModel, need } from "./errors.js";

/** A number written with a decimal point or an exponent. */
export class Real {
  /** @param {number} value */
  constructor(value) {
    this.value = value;
  }
}

/**
 * A list holds `Json`, and so does an object.
 * @typedef {null | boolean | string | number | bigint | Real | any[] | Map<string, any>} Json
 */

const MAX_DIGITS = 18;
const MAX_DEPTH = 500;
const NUMBER = /-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/y;
const PLAIN = /[^"\\\x00-\x1f]*/y;
const SPACE = /[ \t\n\r]*/y;
const ESCAPES = new Map(
  Object.entries({ '"': '"', "\\": "\\", "/": "/", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" }),
);

/**
 * An object without repeated keys, NaN, endless numbers and halves of surrogate pairs.
 * @param {string} text
 * @param {string} what its name in messages
 * @returns {Map<string, Json>}
 */
export function strictJson(text, what) {
  let at = 0;

  /** @param {string} reason @returns {never} */
  function fail(reason) {
    throw new InvalidModel(`${what} is not JSON (${reason}): the file is damaged or of another kind`);
  }

  /** What matches here, which may be nothing. @param {RegExp} pattern @returns {RegExpExecArray | null} */
  function take(pattern) {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found) at = pattern.lastIndex;
    return found;
  }

  /** The next character that is no space. */
  function next() {
    take(SPACE);
    return text[at];
  }

  /** @param {string} word */
  function expect(word) {
    if (!text.startsWith(word, at)) fail(`${word} is expected at character ${at}`);
    at += word.length;
  }

  /** @returns {string} */
  function string() {
    expect('"');
    let found = "";
    for (;;) {
      found += take(PLAIN)?.[0] ?? "";
      const mark = text[at++];
      if (mark === '"') break;
      if (mark !== "\\") fail("a text does not end");
      const kind = text[at++];
      if (kind === "u") {
        const digits = text.slice(at, at + 4);
        if (!/^[0-9a-fA-F]{4}$/.test(digits)) fail("an escape has no four digits");
        found += String.fromCharCode(parseInt(digits, 16));
        at += 4;
      } else {
        found += ESCAPES.get(kind) ?? fail("an unknown escape");
      }
    }
    if (/[\ud800-\udfff]/u.test(found)) fail("half of a surrogate pair");
    return found;
  }

  /** @returns {number | bigint | Real} */
  function number() {
    const found = take(NUMBER) ?? fail(`nothing known at character ${at}`);
    if (found[1] !== undefined || found[2] !== undefined) return new Real(Number(found[0]));
    need(found[0].length <= MAX_DIGITS, () => `${what} has a number of ${found[0].length} digits`);
    const whole = Number(found[0]) + 0;
    return Number.isSafeInteger(whole) ? whole : BigInt(found[0]);
  }

  /**
   * A list or an object: items with commas between them.
   * @param {string} end
   * @param {() => void} item
   */
  function items(end, item) {
    at++;
    if (next() !== end) {
      for (;;) {
        item();
        if (next() !== ",") break;
        at++;
      }
    }
    expect(end);
  }

  /** @param {number} depth @returns {Json} */
  function value(depth) {
    if (depth > MAX_DEPTH) fail("nested too deeply");
    const first = next();
    if (first === '"') return string();
    if (first === "[") {
      /** @type {Json[]} */
      const list = [];
      items("]", () => list.push(value(depth + 1)));
      return list;
    }
    if (first === "{") {
      /** @type {Map<string, Json>} */
      const found = new Map();
      items("}", () => {
        next();
        const key = string();
        if (next() !== ":") fail("a key has no value");
        at++;
        const inner = value(depth + 1);
        need(!found.has(key), () => `${what} has the same key twice`);
        found.set(key, inner);
      });
      return found;
    }
    for (const [word, constant] of /** @type {const} */ ([
      ["true", true],
      ["false", false],
      ["null", null],
    ])) {
      if (text.startsWith(word, at)) {
        at += word.length;
        return constant;
      }
    }
    const odd = /^(NaN|-?Infinity)/.exec(text.slice(at, at + 9));
    need(!odd, () => `${what} has ${odd?.[0]} as a number`);
    return number();
  }

  const document = value(0);
  if (next() !== undefined) fail("something follows the end");
  need(document instanceof Map, () => `${what} is not a JSON object`);
  return document;
}

/**
 * A whole number written without a point, if it is one.
 * @param {Json | undefined} value
 * @returns {value is number | bigint}
 */
export function isWhole(value) {
  return typeof value === "number" || typeof value === "bigint";
}

/** Any number as floating point; NaN for anything else. @param {Json | undefined} value */
export function asFloat(value) {
  return value instanceof Real ? value.value : isWhole(value) ? Number(value) : NaN;
}

/** @param {Json | undefined} value @returns {value is string[]} */
export function areStrings(value) {
  return Array.isArray(value) && value.every((each) => typeof each === "string");
}

/** The whole numbers of a list, none below 0, or null. @param {Json | undefined} value @returns {number[] | null} */
export function naturals(value) {
  return Array.isArray(value) && value.every((each) => isWhole(each) && each >= 0) ? value.map(Number) : null;
}

/** Characters as the format counts them: code points. @param {string} text */
export function lengthOf(text) {
  let count = 0;
  for (const _ of text) count++;
  return count;
}
