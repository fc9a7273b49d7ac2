// From the pixels of the drawing to those of the network. `centred` equals bayesbinn.data.centred, number for number.

/** Fainter pixels, such as blurred edges or the noise of a photograph, do not count as ink when the box is found. */
const FAINT = 16;

/**
 * A drawing prepared like MNIST's digits: scaled to fit a box, its center of mass in the middle of a square.
 * All black if there is no ink.
 * @param {Uint8Array | Uint8ClampedArray} ink bright on black, `width` pixels per row
 * @param {number} width
 * @param {number} side of the result
 * @param {number} box
 * @returns {Uint8Array} [side × side]
 */
export function centred(ink, width, side, box) {
  const result = new Uint8Array(side * side);
  const found = inkBox(ink, width);
  if (!found) return result;
  const longest = Math.max(found.width, found.height);
  const columns = Math.max(1, Math.floor((box * found.width) / longest + 0.5));
  const rows = Math.max(1, Math.floor((box * found.height) / longest + 0.5));
  const at = (/** @type {number} */ x, /** @type {number} */ y) => ink[(found.top + y) * width + found.left + x];
  const small = averaged(at, found, { width: columns, height: rows });
  const across = new Float64Array(columns);
  const down = new Float64Array(rows);
  small.forEach((value, place) => {
    across[place % columns] += value;
    down[Math.floor(place / columns)] += value;
  });
  const left = firstPixel(across, side);
  const top = firstPixel(down, side);
  for (let y = 0; y < rows; y++) {
    for (let x = 0; x < columns; x++) result[(top + y) * side + left + x] = Math.floor(small[y * columns + x] + 0.5);
  }
  return result;
}

/**
 * A whole picture at another size: every new pixel is the mean of the area that it covers.
 * @param {Uint8ClampedArray} pixels red, green, blue and alpha, `size.width` pixels per row
 * @param {Size} size
 * @param {Size} smaller
 * @param {number} channels 1 (gray) or 3
 * @returns {Uint8Array} [channels × height × width]
 */
export function scaled(pixels, size, smaller, channels) {
  const area = smaller.width * smaller.height;
  const result = new Uint8Array(channels * area);
  for (let channel = 0; channel < channels; channel++) {
    const colour = (/** @type {number} */ x, /** @type {number} */ y) => pixels[4 * (y * size.width + x) + channel];
    const at = channels === 1 ? grey(pixels, size.width) : colour;
    averaged(at, size, smaller).forEach((value, place) => (result[channel * area + place] = Math.floor(value + 0.5)));
  }
  return result;
}

/**
 * The ink of a picture, bright on black: its paper, the median of its border, becomes black.
 * @param {Uint8ClampedArray} pixels red, green, blue and alpha
 * @param {Size} size
 * @returns {Uint8Array}
 */
export function inkOf(pixels, size) {
  const at = grey(pixels, size.width);
  const border = [];
  for (let x = 0; x < size.width; x++) border.push(at(x, 0), at(x, size.height - 1));
  for (let y = 0; y < size.height; y++) border.push(at(0, y), at(size.width - 1, y));
  border.sort((a, b) => a - b);
  const paper = border[border.length >> 1];
  const ink = new Float64Array(size.width * size.height);
  let most = 0;
  for (let y = 0; y < size.height; y++) {
    for (let x = 0; x < size.width; x++) {
      const difference = paper > 127 ? paper - at(x, y) : at(x, y) - paper;
      ink[y * size.width + x] = difference;
      most = Math.max(most, difference);
    }
  }
  // Anything fainter than a quarter of the ink is shadow or the grain of the paper.
  const floor = most / 4;
  if (most < FAINT) return new Uint8Array(ink.length);
  return Uint8Array.from(ink, (value) => Math.round((255 * Math.max(value - floor, 0)) / (most - floor)));
}

/** @typedef {{width: number, height: number}} Size */

/** @param {Uint8ClampedArray} pixels @param {number} width */
function grey(pixels, width) {
  return (/** @type {number} */ x, /** @type {number} */ y) => {
    const place = 4 * (y * width + x);
    return 0.299 * pixels[place] + 0.587 * pixels[place + 1] + 0.114 * pixels[place + 2];
  };
}

/** @param {ArrayLike<number>} ink @param {number} width @returns {(Size & {left: number, top: number}) | null} */
function inkBox(ink, width) {
  let left = width, right = -1, top = -1, bottom = -1;
  for (let place = 0; place < ink.length; place++) {
    if (ink[place] < FAINT) continue;
    const x = place % width, y = (place - x) / width;
    if (top < 0) top = y;
    bottom = y;
    if (x < left) left = x;
    if (x > right) right = x;
  }
  return top < 0 ? null : { left, top, width: right - left + 1, height: bottom - top + 1 };
}

/**
 * The means of areas, first along the columns and then along the rows, in float64.
 * @param {(x: number, y: number) => number} at
 * @param {Size} size
 * @param {Size} smaller
 */
function averaged(at, size, smaller) {
  const tall = new Float64Array(smaller.height * size.width);
  weigh(size.height, smaller.height, (row, y, share) => {
    for (let x = 0; x < size.width; x++) tall[row * size.width + x] += share * at(x, y);
  });
  const small = new Float64Array(smaller.height * smaller.width);
  weigh(size.width, smaller.width, (column, x, share) => {
    for (let y = 0; y < smaller.height; y++) small[y * smaller.width + column] += share * tall[y * size.width + x];
  });
  return small;
}

/**
 * Every pixel that a new, larger one covers, with its share; the shares of a new one add up to 1.
 * @param {number} size
 * @param {number} smaller
 * @param {(place: number, pixel: number, share: number) => void} use
 */
function weigh(size, smaller, use) {
  const step = size / smaller;
  for (let place = 0; place < smaller; place++) {
    const from = place * step, to = (place + 1) * step;
    for (let pixel = Math.floor(from); pixel < Math.min(size, Math.ceil(to)); pixel++) {
      const covered = Math.min(to, pixel + 1) - Math.max(from, pixel);
      if (covered > 0) use(place, pixel, covered * (smaller / size));
    }
  }
}

/** Where an image starts, so that its center of mass is in the middle and all of it is visible.
 * @param {Float64Array} mass @param {number} side */
function firstPixel(mass, side) {
  let sum = 0, moment = 0;
  mass.forEach((value, place) => {
    sum += value;
    moment += value * (place + 0.5);
  });
  return Math.min(Math.max(Math.floor(side / 2 - moment / sum + 0.5), 0), side - mass.length);
}
