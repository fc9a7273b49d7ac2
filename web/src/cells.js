// The cells of a table as numbers: text, numbers, true and false, dates, and what stands for a missing cell. Every
// function takes one cell and returns NaN for a missing one.

/** A cell that is not what its column holds; the text says what is needed. */
export class NotOfItsKind extends Error {}

const MISSING = new Set(
  "#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|None|n/a|nan|null|NaT|?|".split(
    "|",
  ),
);
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/;
const SPACES = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const AROUND = new RegExp(`^[${SPACES}]+|[${SPACES}]+$`, "g");
const YEAR = "(\\d{4})";
const TWO = "(\\d{1,2})";
const TIME =
  `(?:[T ]+${TWO}:(\\d\\d)(?::(\\d\\d)(?:[.,](\\d{1,9}))?)?[\\t-\\r ]*(?:([AP])M[\\t-\\r ]*)?` +
  "(Z|UTC|GMT|[+-]\\d\\d:?\\d\\d)?)?$";
const YEAR_FIRST = new RegExp(`^${YEAR}([-/.])${TWO}\\2${TWO}${TIME}`);
const YEAR_LAST = new RegExp(`^${TWO}([-/.])${TWO}\\2${YEAR}${TIME}`);
const MONTHS = "JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC";
const NAME = `(${MONTHS})[A-Z]{0,6}`;
const DAY_AND_NAME = new RegExp(`^${TWO}([-/. ])${NAME}[.,]?\\2${YEAR}`);
const NAME_AND_DAY = new RegExp(`^${NAME}\\.? ${TWO},? ${YEAR}`);
const TRUE = ["true", "t", "yes", "y", "1", "1.0"];
const FALSE = ["false", "f", "no", "n", "0", "0.0"];
const EXAMPLES = { ymd: "2024-01-31", dmy: "31.1.2024", mdy: "1/31/2024" };

/** @param {string} text */
const stripped = (text) => text.replace(AROUND, "");

/** @param {unknown} cell */
export function isMissing(cell) {
  if (typeof cell === "string") return MISSING.has(stripped(cell));
  return cell === null || cell === undefined || Number.isNaN(cell) || (cell instanceof Date && Number.isNaN(+cell));
}

/** A number, as text or as itself. @param {unknown} cell */
export function numberOf(cell) {
  let number = NaN;
  if (typeof cell === "string" && NUMBER.test(stripped(cell))) number = Number(stripped(cell));
  else if (isMissing(cell)) return NaN;
  else if (typeof cell === "number" || typeof cell === "bigint" || typeof cell === "boolean") number = Number(cell);
  else throw new NotOfItsKind("a number is needed");
  if (!Number.isFinite(number)) throw new NotOfItsKind("a finite number is needed");
  return number;
}

/** 1 or 0: true, yes, 1 and so on. @param {unknown} cell */
export function booleanOf(cell) {
  if (isMissing(cell)) return NaN;
  const text = stripped(written(cell)).toLowerCase();
  if (TRUE.includes(text)) return 1;
  if (FALSE.includes(text)) return 0;
  throw new NotOfItsKind("true or false is needed");
}

/**
 * A category's name: text without spaces around it, a whole number without a decimal point; null if missing.
 * @param {unknown} cell
 */
export function categoryOf(cell) {
  return isMissing(cell) ? null : stripped(typeof cell === "string" ? cell : written(cell));
}

/** The name of a category; a whole number without zeros after its decimal point. @param {string} name */
export function withoutZeros(name) {
  return name.replace(/^(-?[0-9]+)\.0+$/, "$1");
}

/** A value as Python writes it, which is how categories are named. @param {unknown} cell */
function written(cell) {
  if (typeof cell === "boolean") return cell ? "True" : "False";
  if (typeof cell !== "number") return String(cell);
  if (!Number.isFinite(cell)) return cell > 0 ? "inf" : "-inf";
  if (Number.isInteger(cell)) return String(BigInt(cell));
  if (Math.abs(cell) >= 1e-4) return String(cell);
  return cell.toExponential().replace(/e-([0-9])$/, "e-0$1");
}

/** A date as seconds since 1970. @param {unknown} cell @param {keyof typeof EXAMPLES} order */
export function secondsOf(cell, order) {
  if (isMissing(cell)) return NaN;
  if (cell instanceof Date) return cell.getTime() / 1000;
  const text = stripped(typeof cell === "string" ? cell : "")
    .toUpperCase()
    .replace(DAY_AND_NAME, "$4-$3-$1")
    .replace(NAME_AND_DAY, "$3-$1-$2")
    .replace(/-([A-Z]{3})-/, (_, month) => `-${1 + MONTHS.indexOf(month) / 4}-`);
  let found = YEAR_FIRST.exec(text);
  let date = found ? [found[1], found[3], found[4]] : [];
  if (!found && order !== "ymd") {
    found = YEAR_LAST.exec(text);
    if (found) date = order === "dmy" ? [found[4], found[3], found[1]] : [found[4], found[1], found[3]];
  }
  const seconds = found
    ? secondsOfParts(
        [...date, ...found.slice(5, 8)].map((part) => Number(part ?? 0)),
        found[8],
        found[9],
      )
    : null;
  if (!found || seconds === null) throw new NotOfItsKind(`a date is needed, such as ${EXAMPLES[order]}`);
  return seconds - offsetOf(found[10]);
}

/**
 * Null if there is no such date.
 * @param {number[]} parts year to second
 * @param {string | undefined} fraction its digits
 * @param {string | undefined} half A or P if the clock has 12 hours; 12 AM is 0
 */
function secondsOfParts([year, month, day, hour, minute, second], fraction = "", half) {
  const moment = new Date(0);
  moment.setUTCFullYear(year, month - 1, day);
  const exists = year >= 1 && moment.getUTCMonth() === month - 1 && moment.getUTCDate() === day;
  if (half) hour = hour > 0 && hour < 13 ? (hour % 12) + (half === "P" ? 12 : 0) : 24;
  if (!exists || hour > 23 || minute > 59 || second > 59) return null;
  const whole = moment.getTime() / 1000 + hour * 3600 + minute * 60 + second;
  const micro = Number(fraction.padEnd(6, "0").slice(0, 6));
  if (micro === 0) return whole;
  // Rounded once, as a decimal number is when it is read.
  const [sign, size, rest] = whole < 0 ? ["-", -whole - 1, 1e6 - micro] : ["", whole, micro];
  return Number(`${sign}${size}.${String(rest).padStart(6, "0")}`);
}

/** @param {string | undefined} zone */
function offsetOf(zone) {
  if (zone === undefined || !/\d/.test(zone)) return 0;
  const digits = zone.slice(1).replace(":", "");
  const size = Number(digits.slice(0, 2)) * 3600 + Number(digits.slice(2)) * 60;
  return zone[0] === "-" ? -size : size;
}
