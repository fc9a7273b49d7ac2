// Reads the model out of the page, and shows the page once it can answer.

import { startForm } from "./form.js";
import { startImages } from "./images.js";
import { part } from "./results.js";

/** @param {(bytes: Uint8Array, options?: object) => Promise<any>} load of the runtime */
export async function start(load) {
  const facts = JSON.parse(part("facts").textContent);
  try {
    const model = await load(bytesOf(part("model").textContent.trim()), { activations: "exact" });
    part(facts.kind === "image" ? "image-input" : "table-input").hidden = false;
    (facts.kind === "image" ? startImages : startForm)(model, facts);
    part("page").hidden = false;
    document.documentElement.dataset.ready = "true";
  } catch (error) {
    part("failure").hidden = false;
    part("failure").textContent = `This page cannot run: ${error instanceof Error ? error.message : error}`;
  }
}

/** @param {string} base64 */
function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}
