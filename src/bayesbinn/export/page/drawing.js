// The area to draw on: mouse, finger, pen or keyboard; undo and clear; pictures that were dropped, chosen or pasted.

/** @typedef {{colour: string, points: [number, number][]}} Stroke */

/** The longer side of the area, in its own pixels. */
export const LONGEST = 280;
const PEN = 20;
const STEP = 10;

export class Drawing {
  /** @type {(Stroke | HTMLCanvasElement)[]} what was drawn, in order: strokes and pictures */
  #parts = [];
  /** @type {Stroke | null} */
  #stroke = null;
  /** @type {[number, number]} where the keyboard's pen is */
  #cursor = [0, 0];
  #context;

  /**
   * @param {HTMLCanvasElement} canvas
   * @param {import("./preparation.js").Size} size
   * @param {HTMLElement} cursor shows where the keyboard's pen is
   * @param {{colour: () => string, paper: string | null}} look `paper` null: none, only ink counts
   * @param {(event: Event | null) => void} changed is called after every change
   */
  constructor(canvas, size, cursor, look, changed) {
    this.canvas = canvas;
    this.cursor = cursor;
    this.look = look;
    this.changed = changed;
    [canvas.width, canvas.height] = [size.width, size.height];
    this.#cursor = [size.width / 2, size.height / 2];
    this.#context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { willReadFrequently: true }));
    canvas.addEventListener("pointerdown", (event) => this.#down(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => (this.#stroke = null));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("blur", () => this.#lift());
    this.#redraw();
  }

  get isEmpty() {
    return this.#parts.length === 0;
  }

  /** Red, green, blue and alpha of the whole area. */
  get pixels() {
    return this.#context.getImageData(0, 0, this.canvas.width, this.canvas.height).data;
  }

  undo() {
    this.#parts.pop();
    this.#redraw();
    this.changed(null);
  }

  clear() {
    this.#parts = [];
    this.#redraw();
    this.changed(null);
  }

  /** Show a picture instead; users can draw on it. @param {HTMLCanvasElement} picture of the size of the area */
  show(picture) {
    this.#parts = [picture];
    this.#redraw();
    this.changed(null);
  }

  /** @param {PointerEvent} event */
  #down(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    this.canvas.focus({ preventScroll: true });
    this.canvas.setPointerCapture(event.pointerId);
    this.#begin(this.#place(event));
    this.changed(event);
  }

  /** @param {PointerEvent} event */
  #move(event) {
    if (!this.#stroke) return;
    // One event may stand for several moves since the last frame.
    const moves = event.getCoalescedEvents?.() ?? [];
    for (const each of moves.length ? moves : [event]) this.#extend(this.#place(each));
    this.changed(event);
  }

  /** @param {PointerEvent} event @returns {[number, number]} */
  #place(event) {
    const box = this.canvas.getBoundingClientRect();
    const { width, height } = this.canvas;
    return [((event.clientX - box.left) * width) / box.width, ((event.clientY - box.top) * height) / box.height];
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const moves = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] };
    const move = moves[/** @type {keyof typeof moves} */ (event.key)];
    if (move) {
      const { width, height } = this.canvas;
      this.#cursor = [limited(this.#cursor[0] + move[0], width), limited(this.#cursor[1] + move[1], height)];
      if (this.#stroke) this.#extend([...this.#cursor]);
    } else if (event.key === " ") {
      if (this.#stroke) this.#lift();
      else this.#begin([...this.#cursor]);
    } else return;
    event.preventDefault();
    this.cursor.hidden = false;
    this.cursor.dataset.down = String(this.#stroke !== null);
    this.cursor.style.left = `${(100 * this.#cursor[0]) / this.canvas.width}%`;
    this.cursor.style.top = `${(100 * this.#cursor[1]) / this.canvas.height}%`;
    this.changed(event);
  }

  #lift() {
    this.#stroke = null;
    this.cursor.hidden = true;
  }

  /** @param {[number, number]} place */
  #begin(place) {
    this.#stroke = { colour: this.look.colour(), points: [place] };
    this.#parts.push(this.#stroke);
    this.#line(this.#stroke, 0);
  }

  /** @param {[number, number]} place */
  #extend(place) {
    const stroke = /** @type {Stroke} */ (this.#stroke);
    stroke.points.push(place);
    this.#line(stroke, stroke.points.length - 2);
  }

  /** Draw a stroke from one of its points on; a single point is a dot. @param {Stroke} stroke @param {number} first */
  #line(stroke, first) {
    const context = this.#context;
    context.strokeStyle = stroke.colour;
    context.lineWidth = PEN;
    context.lineCap = context.lineJoin = "round";
    context.beginPath();
    context.moveTo(...stroke.points[first]);
    for (const point of stroke.points.slice(first)) context.lineTo(...point);
    context.stroke();
  }

  #redraw() {
    const context = this.#context;
    const { width, height } = this.canvas;
    context.clearRect(0, 0, width, height);
    if (this.look.paper) {
      context.fillStyle = this.look.paper;
      context.fillRect(0, 0, width, height);
    }
    for (const part of this.#parts) {
      if (part instanceof HTMLCanvasElement) context.drawImage(part, 0, 0);
      else this.#line(part, 0);
    }
  }
}

/** @param {number} place @param {number} most */
function limited(place, most) {
  return Math.min(Math.max(place, 0), most);
}

/**
 * Call `use` with every picture that is dropped on the page, chosen or pasted.
 * @param {HTMLInputElement} chooser
 * @param {(picture: ImageBitmap) => void} use
 * @param {(message: string) => void} refuse
 */
export function receivePictures(chooser, use, refuse) {
  /** @param {FileList | null | undefined} files */
  const take = async (files) => {
    const file = Array.from(files ?? []).find((each) => each.type.startsWith("image/"));
    if (!file) return refuse("That is not a picture. Drop, choose or paste a PNG, JPEG, GIF or WebP file.");
    try {
      use(await createImageBitmap(file));
    } catch {
      refuse(`${file.name}: the browser cannot read this picture. PNG, JPEG, GIF and WebP work.`);
    }
  };
  chooser.addEventListener("change", () => {
    if (chooser.files?.length) take(chooser.files);
    chooser.value = "";
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    take(event.dataTransfer?.files);
  });
  document.addEventListener("paste", (event) => {
    if (event.clipboardData?.files.length) take(event.clipboardData.files);
  });
}

/**
 * A picture on an area of the drawing's size: all of it inside (`cover` false), or its middle filling the area.
 * @param {ImageBitmap} picture
 * @param {import("./preparation.js").Size} size
 * @param {boolean} cover
 */
export function fitted(picture, size, cover) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [size.width, size.height];
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { willReadFrequently: true }));
  const choose = cover ? Math.max : Math.min;
  const scale = choose(size.width / picture.width, size.height / picture.height);
  const [width, height] = [picture.width * scale, picture.height * scale];
  context.imageSmoothingQuality = "high";
  context.fillStyle = "white"; // under what is transparent
  const place = /** @type {const} */ ([(size.width - width) / 2, (size.height - height) / 2, width, height]);
  context.fillRect(...place);
  context.drawImage(picture, ...place);
  return { canvas, context, place };
}
