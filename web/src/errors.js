// What can go wrong, and how messages show what was received.

/** A file that cannot be used: damaged, cut off, of another kind, or for a later version. */
export class InvalidModel extends Error {
  name = "InvalidModel";
}

/** More memory than the caller allows, or than there is. */
export class TooMuchMemory extends InvalidModel {
  name = "TooMuchMemory";
}

/** Inputs or options that the model does not take. */
export class InvalidInput extends Error {
  name = "InvalidInput";
}

/**
 * @param {unknown} condition
 * @param {() => string} otherwise the message, made only if it is needed
 * @returns {asserts condition}
 */
export function need(condition, otherwise) {
  if (!condition) throw new InvalidModel(otherwise());
}

/** Text in quotation marks, with control characters as escapes. @param {unknown} value */
export function quoted(value) {
  const text = String(value);
  const mark = text.includes("'") && !text.includes('"') ? '"' : "'";
  return mark + printable(text.replaceAll("\\", "\\\\")) + mark;
}

/** Text without control characters, line separators and changes of direction. @param {string} text */
export function printable(text) {
  return text.replace(/[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]/gu, (found) => {
    const code = /** @type {number} */ (found.codePointAt(0));
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}
