// How unlike the training data an input is, as bayesbinn.runtime computes it: from the model file's section.

/** @typedef {{rule: string, numbers: Record<string, any>, tensors: Record<string, any>}} Section */

const IMAGE_RULE = "entropy, and what no class explains";
const EDGES = 4;
const WEIGHT = 2;
const ROW_RULE = "principal components of the codes";

/**
 * The score of an image, 1 being the threshold; null if the file has another rule. See runtime/image_unfamiliarity.py.
 * @param {Section} section
 * @param {Float32Array} x
 * @param {number[]} shape channels, height, width
 * @param {number} entropy of the networks' mean prediction
 */
export function imageUnfamiliarity(section, x, shape, entropy) {
  if (section.rule !== IMAGE_RULE) return null;
  const { block, classes, entropy: usualEntropy, rest: usualRest, unit } = section.numbers;
  const units = edges(x, shape, block);
  const length = Math.sqrt(units.reduce((sum, value) => sum + value * value, 0));
  if (length > 0) units.forEach((value, place) => (units[place] = value / length));
  const directions = section.tensors.directions;
  const perClass = directions.length / classes / units.length;
  let most = 0;
  for (let each = 0; each < classes; each++) {
    let explained = 0;
    for (let i = each * perClass; i < (each + 1) * perClass; i++) {
      let along = 0;
      for (let j = 0; j < units.length; j++) along += directions[i * units.length + j] * units[j];
      explained += along * along;
    }
    most = Math.max(most, explained);
  }
  const rest = Math.max(1 - most, 0);
  return (Math.sqrt(Math.max(entropy, 0) / usualEntropy) + (WEIGHT * rest) / usualRest) / unit;
}

/**
 * The mean strength of edges in each direction in each block; rows and columns that fill no block are left out.
 * @param {Float32Array} x
 * @param {number[]} shape
 * @param {number} block
 */
function edges(x, [channels, height, width], block) {
  const [rows, columns] = [Math.floor(height / block), Math.floor(width / block)];
  const means = new Float64Array(channels * EDGES * rows * columns);
  for (let c = 0; c < channels; c++) {
    for (let row = 0; row < rows * block; row++) {
      for (let column = 0; column < columns * block; column++) {
        const place = (c * height + row) * width + column;
        const across = column > 0 && column < width - 1 ? x[place + 1] - x[place - 1] : 0;
        const down = row > 0 && row < height - 1 ? x[place + width] - x[place - width] : 0;
        if (across === 0 && down === 0) continue;
        const strength = Math.sqrt(across * across + down * down) / (block * block);
        const direction = (Math.atan2(down, across) / Math.PI) * EDGES;
        const before = Math.floor(direction);
        const here = Math.floor(row / block) * columns + Math.floor(column / block);
        // Shared by the two nearest directions; an edge is the same seen from both sides.
        const first = (before + EDGES) % EDGES;
        const next = (first + 1) % EDGES;
        means[(c * EDGES + first) * rows * columns + here] += strength * (1 - (direction - before));
        means[(c * EDGES + next) * rows * columns + here] += strength * (direction - before);
      }
    }
  }
  return means;
}

/**
 * The score of a table's row, from its codes; null if the file has another rule. See runtime/unfamiliarity.py.
 * @param {Section} section
 * @param {Float32Array} codes
 */
export function rowUnfamiliarity(section, codes) {
  if (section.rule !== ROW_RULE) return null;
  const { deviations, rest, unit } = section.numbers;
  const { mean, directions } = section.tensors;
  const away = Float64Array.from(codes, (code, place) => code - mean[place]);
  let inside = 0;
  let off = away.reduce((sum, value) => sum + value * value, 0);
  for (let i = 0; i * away.length < directions.length; i++) {
    let along = 0;
    for (let j = 0; j < away.length; j++) along += away[j] * directions[i * away.length + j];
    inside += along * along;
    off -= (along * deviations[i]) ** 2;
  }
  return Math.sqrt(inside + Math.max(off, 0) / rest) / unit;
}
