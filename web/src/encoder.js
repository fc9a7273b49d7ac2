// Runs a table's encoding: rows of cells in, codes out. Each code is one expression of differences, quotients and
// limits in float64, rounded to float32 at the end, so that it has the same bits wherever it is computed.
import { NotOfItsKind, booleanOf, categoryOf, numberOf, secondsOf, withoutZeros } from "./cells.js";
import { CYCLES } from "./columns.js";
import { InvalidInput, quoted } from "./errors.js";

/** @typedef {import("./columns.js").Column} Column */
/** @typedef {(x: number) => number} Formula */
/** Half the width of a line that is a step: every difference but 0 is beyond it. */
const STEP = 2 ** -1000;

/** @param {number} x @param {number} low @param {number} high */
const limited = (x, low, high) => Math.min(Math.max(x, low), high);

/** @param {number} low @param {number} high @param {number} height @returns {Formula} */
function line(low, high, height) {
  const middle = low / 2 + high / 2;
  const half = (high - low) / 2 || STEP;
  return (x) => limited((x - middle) / half, -1, 1) * height;
}

/** @param {number[]} knots @param {number} height @returns {Formula} */
function rank(knots, height) {
  const step = 2 / (knots.length - 1);
  return (x) => {
    let j = 0;
    while (j < knots.length - 2 && knots[j + 1] <= x) j++;
    const share = limited((x - knots[j]) / (knots[j + 1] - knots[j]), 0, 1);
    return ((j + share) * step - 1) * height;
  };
}

/** @param {number} period @param {number} shift @param {number} height @returns {Formula} */
const wave = (period, shift, height) => (x) => {
  const phase = x / period + shift;
  return (Math.abs(phase - Math.floor(phase) - 0.5) * 4 - 1) * height;
};

/** @param {Column} column @returns {Formula[]} */
function formulasOf(column) {
  const { knots, height } = column;
  if (column.kind === "boolean") return [line(0, 1, height)];
  const made = column.codes.flatMap((code) => {
    if (code === "line") return [line(knots[0], knots[knots.length - 1], height)];
    if (code === "rank") return [rank(knots, height)];
    return knots.slice(1).map((high, i) => line(knots[i], high, height));
  });
  for (const cycle of column.cycles ?? []) for (const shift of [0, 0.25]) made.push(wave(CYCLES[cycle], shift, height));
  return made;
}

/**
 * How a cell becomes codes, written at a place of an array of zeros.
 * @param {Column} column
 * @returns {(cell: unknown, codes: Float32Array, at: number) => void}
 */
function writerOf(column) {
  const { height, missing, valueCodes } = column;
  /** @type {(number: number, codes: Float32Array, at: number) => void} */
  let write;
  /** @type {(cell: unknown) => number} */
  let read;
  if (column.kind === "category") {
    const places = new Map(column.categories.map((name, place) => [name, place]));
    const unseen = column.other ? column.categories.length : -1;
    read = (cell) => {
      const name = categoryOf(cell);
      return name === null ? NaN : (places.get(name) ?? places.get(withoutZeros(name)) ?? unseen);
    };
    write = (place, codes, at) => {
      if (place >= 0) codes[at + place] = height;
    };
  } else {
    const formulas = formulasOf(column);
    read =
      column.kind === "number"
        ? numberOf
        : column.kind === "boolean"
          ? booleanOf
          : (cell) => secondsOf(cell, column.order);
    write = (number, codes, at) => formulas.forEach((formula, i) => (codes[at + i] = formula(number)));
  }
  return (cell, codes, at) => {
    const number = read(cell);
    if (!Number.isNaN(number)) write(number, codes, at);
    else if (missing) codes[at + valueCodes] = height;
  };
}

/**
 * A function from rows, each with its cells by name, to [rows][width] of codes. A missing cell is null; it may not be
 * left out.
 * @param {import("./columns.js").Encoding} encoding
 * @returns {(rows: Record<string, unknown>[]) => Float32Array}
 */
export function encoderOf({ columns, width }) {
  const writers = columns.map(writerOf);
  return (rows) => {
    if (!Array.isArray(rows)) throw new InvalidInput("rows must be a list of objects, with cells by name");
    const codes = new Float32Array(rows.length * width);
    let at = 0;
    rows.forEach((row, index) => {
      const where = `row ${index + 1}`;
      if (typeof row !== "object" || row === null)
        throw new InvalidInput(`${where}: an object of columns and cells is needed`);
      columns.forEach((column, i) => {
        const { name } = column;
        if (!Object.hasOwn(row, name)) {
          throw new InvalidInput(
            `${where} has no ${quoted(name)}, which the model was trained on. A missing cell is null`,
          );
        }
        try {
          writers[i](row[name], codes, at);
        } catch (error) {
          if (!(error instanceof NotOfItsKind)) throw error;
          const cell = typeof row[name] === "string" ? quoted(row[name]) : String(row[name]);
          throw new InvalidInput(`column ${quoted(name)} holds ${cell.slice(0, 100)} in ${where}: ${error.message}`);
        }
        at += column.width;
      });
    });
    return codes;
  };
}
