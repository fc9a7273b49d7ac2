// From the outputs of one or more networks to probabilities and their uncertainty, in float64.

/**
 * [networks][batch][outputs] of logits, and their sizes. A single logit z is that of class 1 of two, (0, z).
 * @typedef {{values: Float32Array, networks: number, batch: number, outputs: number}} Logits
 */
/**
 * Probabilities [batch][classes], and for each example its likeliest class and its uncertainties in nats: `entropy` is
 * the total, `aleatoric` what remains when the weights are known, `mutualInformation` how much the networks disagree.
 * `members` [networks][batch][classes] are each network's probabilities.
 * @typedef {{probabilities: Float32Array, classes: Int32Array, entropy: Float32Array, aleatoric: Float32Array,
 *   mutualInformation: Float32Array, members: Float32Array}} Prediction
 */

const TINY = 2.2250738585072014e-308;

/** Of a single logit the two. @param {Logits} logits @returns {Logits} */
export function twoClasses(logits) {
  if (logits.outputs > 1) return logits;
  const values = new Float32Array(2 * logits.values.length);
  logits.values.forEach((value, i) => (values[2 * i + 1] = value));
  return { ...logits, values, outputs: 2 };
}

/** log softmax of each row. @param {Logits} logits of two or more classes */
function logProbabilities({ values, outputs }) {
  const logs = new Float64Array(values.length);
  for (let at = 0; at < values.length; at += outputs) {
    let largest = -Infinity;
    for (let i = at; i < at + outputs; i++) largest = Math.max(largest, values[i]);
    let sum = 0;
    for (let i = at; i < at + outputs; i++) sum += Math.exp(values[i] - largest);
    const log = Math.log(sum);
    for (let i = at; i < at + outputs; i++) logs[i] = values[i] - largest - log;
  }
  return logs;
}

/** @param {Float64Array} members @param {number} networks */
function meanOf(members, networks) {
  const size = members.length / networks;
  const mean = new Float64Array(size);
  members.forEach((value, i) => (mean[i % size] += value));
  return mean.map((sum) => sum / networks);
}

/** The logarithms of the mean probabilities. @param {Logits} outputs */
export function meanLogits(outputs) {
  const logits = twoClasses(outputs);
  const logs = logProbabilities(logits);
  const size = logs.length / logits.networks;
  const mean = new Float32Array(size);
  for (let i = 0; i < size; i++) {
    let largest = -Infinity;
    for (let at = i; at < logs.length; at += size) largest = Math.max(largest, logs[at]);
    let sum = 0;
    for (let at = i; at < logs.length; at += size) sum += Math.exp(logs[at] - largest);
    mean[i] = largest + Math.log(sum) - Math.log(logits.networks);
  }
  return mean;
}

/** @param {Logits} outputs */
export function meanProbabilities(outputs) {
  const logits = twoClasses(outputs);
  return Float32Array.from(meanOf(logProbabilities(logits).map(Math.exp), logits.networks));
}

/** @param {Logits} outputs @returns {Prediction} */
export function classified(outputs) {
  const logits = twoClasses(outputs);
  const { networks, batch, outputs: classes } = logits;
  const logs = logProbabilities(logits);
  const members = logs.map(Math.exp);
  const mean = meanOf(members, networks);
  /** −Σ p·log p of row `row`. @param {Float64Array} p @param {(i: number) => number} log @param {number} row */
  const entropyOf = (p, log, row) => {
    let sum = 0;
    for (let i = row * classes; i < (row + 1) * classes; i++) if (p[i] > 0) sum -= p[i] * log(i);
    return sum;
  };
  const found = {
    probabilities: Float32Array.from(mean),
    classes: new Int32Array(batch),
    entropy: new Float32Array(batch),
    aleatoric: new Float32Array(batch),
    mutualInformation: new Float32Array(batch),
    members: Float32Array.from(members),
  };
  for (let row = 0; row < batch; row++) {
    const total = entropyOf(mean, (i) => Math.log(Math.max(mean[i], TINY)), row);
    let aleatoric = 0;
    for (let n = 0; n < networks; n++) aleatoric += entropyOf(members, (i) => logs[i], n * batch + row);
    aleatoric /= networks;
    found.entropy[row] = total;
    found.aleatoric[row] = aleatoric;
    found.mutualInformation[row] = Math.max(total - aleatoric, 0);
    const row_ = found.probabilities.subarray(row * classes, (row + 1) * classes);
    found.classes[row] = row_.indexOf(Math.max(...row_));
  }
  return found;
}

/** Over the networks, of each output; see `Model.regression`. @param {Logits} outputs */
export function meanAndDeviation({ values, networks }) {
  const size = values.length / networks;
  const mean = meanOf(Float64Array.from(values), networks);
  const squares = new Float64Array(size);
  values.forEach((value, i) => (squares[i % size] += (value - mean[i % size]) ** 2));
  const std = networks > 1 ? squares.map((sum) => Math.sqrt(sum / (networks - 1))) : squares;
  return { mean: Float32Array.from(mean), std: Float32Array.from(std) };
}
