// The page of a table's model: a form with the columns, and what the networks say about the row in it.

import { Bars, Opinions, element, membersOf, part, percent, short, showUnfamiliarity, votes } from "./results.js";
import { rowUnfamiliarity } from "./unfamiliarity.js";

const MISSING = "";

/** @param {any} model @param {any} facts */
export function startForm(model, facts) {
  const form = part("form");
  /** @type {any[]} */
  const columns = facts.columns;
  const fields = columns.map((column, index) => field(form, column, index));
  const classifies = facts.task === "classification";
  const bars = classifies ? new Bars(part("bars"), facts.classes) : null;
  const opinions = classifies ? new Opinions(part("opinions"), facts.classes, model.networks) : null;
  const answer = () => {
    const row = Object.fromEntries(columns.map((column, index) => [column.name, fields[index]()]));
    part("note").textContent = "";
    try {
      show(model, facts, row, bars, opinions);
    } catch (error) {
      part("note").textContent = error instanceof Error ? error.message : String(error);
    }
  };
  form.addEventListener("input", answer);
  form.addEventListener("submit", (/** @type {Event} */ event) => event.preventDefault());
  answer();
}

/**
 * Adds a field to the form; returns a function that reads its cell, null if it is missing.
 * @param {HTMLElement} form
 * @param {any} column
 * @param {number} index
 * @returns {() => string | number | boolean | null}
 */
function field(form, column, index) {
  const row = element("div", form, "field");
  const label = /** @type {HTMLLabelElement} */ (element("label", row));
  label.htmlFor = `field-${index}`;
  label.textContent = column.name;
  const hint = element("small", row);
  hint.id = `hint-${index}`;
  const choices = choicesOf(column);
  const input = /** @type {any} */ (document.createElement(choices ? "select" : "input"));
  input.id = label.htmlFor;
  input.setAttribute("aria-describedby", hint.id);
  row.insertBefore(input, hint);
  if (choices) {
    for (const [value, text] of choices) input.append(new Option(text, value));
    hint.textContent = column.kind === "category" ? `${column.categories.length} categories` : "yes or no";
    return () => {
      if (input.value === MISSING) return null;
      return column.kind === "boolean" ? input.value === "true" : input.value.slice(1);
    };
  }
  if (column.kind === "date") {
    input.type = "date";
    const [first, last] = column.range.map(day);
    input.value = day((column.range[0] + column.range[1]) / 2);
    hint.textContent = `in training ${first} to ${last}; empty: missing`;
    return () => (input.value === "" ? null : input.value);
  }
  input.type = "number";
  input.step = column.whole ? "1" : "any";
  if (column.range) {
    // The median, as far as the knots tell it: two knots are only the ends.
    const last = column.knots.length - 1;
    const middle = (column.knots[last >> 1] + column.knots[(last + 1) >> 1]) / 2;
    const shown = column.whole ? (/** @type {number} */ x) => String(Math.round(x)) : short;
    input.value = shown(middle);
    hint.textContent = `in training ${shown(column.range[0])} to ${shown(column.range[1])}; empty: missing`;
  } else {
    const { middle, deviation } = column;
    input.value = short(middle ?? 0);
    hint.textContent = middle === undefined ? "a number" : `in training about ${short(middle)} ± ${short(deviation)}`;
  }
  return () => (input.value === "" ? null : Number(input.value));
}

/** Values and texts of a list to choose from; a value that is a category starts with "=". @param {any} column */
function choicesOf(column) {
  if (column.kind === "boolean") return [["true", "yes"], ["false", "no"], [MISSING, "(missing)"]];
  if (column.kind !== "category") return null;
  const known = column.categories.map((/** @type {string} */ name) => [`=${name}`, name]);
  // No training row has this category: the file treats it like a rare one if it can.
  return [...known, ["=(another category)", "(another)"], [MISSING, "(missing)"]];
}

/** @param {number} seconds */
function day(seconds) {
  return new Date(1000 * seconds).toISOString().slice(0, 10);
}

/**
 * @param {any} model
 * @param {any} facts
 * @param {Record<string, any>} row
 * @param {Bars | null} bars
 * @param {Opinions | null} opinions
 */
function show(model, facts, row, bars, opinions) {
  const x = inputOf(model, facts, row);
  const score = model.sections.unfamiliarity ? rowUnfamiliarity(model.sections.unfamiliarity, x) : null;
  showUnfamiliarity(part("gauge"), part("score"), score);
  part("result").dataset.refused = String(score !== null && score > 1);
  if (bars && opinions) showClasses(model.prediction(x), facts, bars, opinions);
  else showQuantity(model.regression(x), facts);
  if (score !== null && score > 1) {
    part("detail").textContent += ` But the row is less familiar than ${facts.usual} of held-out ${facts.examples}.`;
  }
}

/**
 * What the network takes: the codes of the row, or its numbers.
 * @param {any} model
 * @param {any} facts
 * @param {Record<string, any>} row
 */
function inputOf(model, facts, row) {
  if (facts.encoded) return model.encodeRows([row]);
  return Float32Array.from(facts.columns, (/** @type {any} */ { name }) => {
    if (row[name] === null) throw new Error(`${name}: a number is needed; this model does not take missing cells`);
    return row[name];
  });
}

/** @param {any} prediction @param {any} facts @param {Bars} bars @param {Opinions} opinions */
function showClasses(prediction, facts, bars, opinions) {
  const { probabilities } = prediction;
  const members = membersOf(prediction);
  bars.show(probabilities);
  opinions.show(members);
  part("votes").textContent = votes(facts.classes, members);
  const order = Array.from(facts.classes, (_, index) => index).sort((a, b) => probabilities[b] - probabilities[a]);
  part("verdict").textContent = facts.classes[order[0]];
  part("detail").textContent = `The networks give it ${percent(probabilities[order[0]])}.`;
  if (facts.limit === undefined) return;
  const limit = facts.limit ?? 1; // with too few rows to know, every class is possible
  const possible = order.filter((index, place) => place === 0 || 1 - probabilities[index] <= limit);
  const names = possible.map((index) => facts.classes[index]).join(", ");
  part("detail").textContent += ` ${coverageOf(facts)}, the truth is among: ${names}.`;
}

/** @param {any} found mean and spread over the networks @param {any} facts */
function showQuantity(found, facts) {
  const mean = found.mean[0];
  const deviation = Math.hypot(found.std[0], facts.residual ?? 0);
  part("verdict").textContent = deviation > 0 ? `${short(mean)} ± ${short(deviation)}` : short(mean);
  const half = facts.limit == null ? null : facts.limit * deviation;
  part("detail").textContent =
    half === null
      ? "Mean and standard deviation."
      : `${coverageOf(facts)}, the truth is between ${short(mean - half)} and ${short(mean + half)}.`;
}

/** @param {any} facts */
function coverageOf(facts) {
  return `In ${Math.round(100 * facts.coverage)} of 100 cases`;
}
