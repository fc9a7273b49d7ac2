// The page of an image classifier: draw or provide a picture, see what the networks see and say.

import { Drawing, LONGEST, fitted, receivePictures } from "./drawing.js";
import { centred, inkOf, scaled } from "./preparation.js";
import { Bars, Opinions, likeliest, membersOf, part, percent, showUnfamiliarity, votes } from "./results.js";
import { imageUnfamiliarity } from "./unfamiliarity.js";

const ANNOUNCE_AFTER = 600; // milliseconds without a change, so that a screen reader is not interrupted

/** @param {any} model @param {any} facts */
export function startImages(model, facts) {
  const [channels, height, width] = facts.shape;
  const onlyInk = facts.picture.rule === "centred drawing";
  const longest = Math.max(width, height);
  const size = onlyInk
    ? { width: LONGEST, height: LONGEST }
    : { width: Math.round((LONGEST * width) / longest), height: Math.round((LONGEST * height) / longest) };
  const bars = new Bars(part("bars"), facts.classes);
  const opinions = new Opinions(part("opinions"), facts.classes, model.networks);
  const sees = part("sees");
  [sees.width, sees.height] = [width, height];
  const paper = onlyInk ? null : facts.picture.dark ? "black" : "white";
  const ink = () => (channels === 3 ? part("colour").value : paper === "black" ? "white" : "black");
  part("colour-choice").hidden = channels !== 3;
  part("canvas").classList.toggle("ink", onlyInk);

  /** @type {Event | null} the first event that the next frame answers */
  let asking = null;
  let scheduled = false;
  let announcement = 0;
  const drawing = new Drawing(part("canvas"), size, part("cursor"), { colour: ink, paper }, (event) => {
    asking ??= event;
    if (!scheduled) requestAnimationFrame(answer);
    scheduled = true;
  });

  const answer = () => {
    scheduled = false;
    part("note").textContent = "";
    part("undo").disabled = part("clear").disabled = drawing.isEmpty;
    const seen = onlyInk
      ? centred(alphas(drawing.pixels), size.width, height, facts.picture.box)
      : scaled(drawing.pixels, size, { width, height }, channels);
    showSeen(sees, seen, channels);
    show(drawing.isEmpty ? null : predict(model, seen, facts.picture.white));
    if (asking) performance.measure("pointer to bars", { start: asking.timeStamp, end: performance.now() });
    asking = null;
  };

  /** @param {{prediction: any, score: number | null} | null} found */
  const show = (found) => {
    const members = found ? membersOf(found.prediction) : null;
    bars.show(found?.prediction.probabilities ?? null);
    opinions.show(members);
    part("votes").textContent = members ? votes(facts.classes, members) : "–";
    showUnfamiliarity(part("gauge"), part("score"), found?.score ?? null);
    const { title, detail, refused } = verdict(found, facts);
    part("verdict").textContent = title;
    part("detail").textContent = detail;
    part("result").dataset.refused = String(refused);
    clearTimeout(announcement);
    announcement = window.setTimeout(() => (part("announcement").textContent = `${title}. ${detail}`), ANNOUNCE_AFTER);
  };

  receivePictures(
    part("chooser"),
    (picture) => {
      const { canvas, context, place } = fitted(picture, size, !onlyInk);
      if (onlyInk) keepInk(context, place);
      drawing.show(canvas);
    },
    (message) => (part("note").textContent = message),
  );
  part("undo").addEventListener("click", () => drawing.undo());
  part("clear").addEventListener("click", () => drawing.clear());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") drawing.clear();
    else if (event.key === "z" && (event.ctrlKey || event.metaKey)) drawing.undo();
  });
  predict(model, new Uint8Array(channels * height * width), facts.picture.white); // so that the first stroke is not slow
  answer();
}

/** @param {any} model @param {Uint8Array} seen @param {number} white */
function predict(model, seen, white) {
  const x = Float32Array.from(seen, (pixel) => (pixel * white) / 255);
  const prediction = model.prediction(x);
  const section = model.sections.unfamiliarity;
  const score = section ? imageUnfamiliarity(section, x, model.inputShape, prediction.entropy[0]) : null;
  return { prediction, score };
}

/** @param {{prediction: any, score: number | null} | null} found @param {any} facts */
function verdict(found, facts) {
  if (!found) return { title: facts.invitation, detail: "Draw with the mouse, a finger or a pen.", refused: false };
  const { probabilities } = found.prediction;
  const most = likeliest(probabilities);
  const said = `${facts.classes[most]}, ${percent(probabilities[most])}`;
  if (found.score !== null && found.score > 1) {
    const than = `less familiar than ${facts.usual} of held-out ${facts.examples}`;
    const detail = `It is ${than}. Asked anyway, the networks say ${said}.`;
    return { title: facts.refusal, detail, refused: true };
  }
  return { title: facts.classes[most], detail: `The networks give it ${percent(probabilities[most])}.`, refused: false };
}

/** @param {Uint8ClampedArray} pixels */
function alphas(pixels) {
  const ink = new Uint8Array(pixels.length / 4);
  for (let i = 0; i < ink.length; i++) ink[i] = pixels[4 * i + 3];
  return ink;
}

/** Turn a picture into black ink on nothing. @param {CanvasRenderingContext2D} context @param {readonly number[]} place */
function keepInk(context, place) {
  const [left, top] = [Math.ceil(place[0]), Math.ceil(place[1])];
  const image = context.getImageData(left, top, Math.max(1, Math.floor(place[2])), Math.max(1, Math.floor(place[3])));
  const ink = inkOf(image.data, image);
  image.data.fill(0);
  ink.forEach((value, pixel) => (image.data[4 * pixel + 3] = value));
  context.clearRect(0, 0, context.canvas.width, context.canvas.height);
  context.putImageData(image, left, top);
}

/** @param {HTMLCanvasElement} canvas @param {Uint8Array} seen [channels × height × width] @param {number} channels */
function showSeen(canvas, seen, channels) {
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = context.createImageData(canvas.width, canvas.height);
  const area = canvas.width * canvas.height;
  for (let pixel = 0; pixel < area; pixel++) {
    for (let i = 0; i < 3; i++) image.data[4 * pixel + i] = seen[channels === 3 ? i * area + pixel : pixel];
    image.data[4 * pixel + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}
