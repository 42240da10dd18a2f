/**
 * A row as linear functions: norms and matrices between heads and logits, their rounding, and attention
 * (src/cutaway/features/inside/decomposition.py and layers.py).
 *
 * Knows sums in doubles; not a model's parts.
 */

import { KV_BLOCK } from "./core.js";

/**
 * @typedef {Float64Array | Float32Array} Floats
 * x ↦ along · x + constant, and what rounding added
 * @typedef {{along: Float64Array, constant: number, rounding: number}} Direction
 *
 * @typedef {{kind: string, weight: number[] | null, bias: number[] | null, eps: number, group: number}} Norm
 * window: the most positions that a row sees, its own included; 0: all
 * @typedef {{heads: number, kv_heads: number, head_dim: number, value_dim: number, scale: number, softcap: number, window: number,
 *   sinks: number[] | null}} Attention
 * weight: (width, taps), the oldest token's first
 * @typedef {{width: number, taps: number, weight: number[], bias: number[] | null}} Convolution
 */

/** @param {Floats} x @returns {number} */
export function sum(x) {
  let all = 0;
  for (const value of x) all += value;
  return all;
}

/** @param {Floats} a @param {Floats} b @returns {number} */
export function dot(a, b) {
  let all = 0;
  for (let i = 0; i < a.length; i++) all += /** @type {number} */ (a[i]) * /** @type {number} */ (b[i]);
  return all;
}

/** @param {Floats} a @param {Floats} b @returns {number} the sum of the absolute products */
export function size(a, b) {
  let all = 0;
  for (let i = 0; i < a.length; i++) all += Math.abs(/** @type {number} */ (a[i]) * /** @type {number} */ (b[i]));
  return all;
}

/** @param {Floats} x @param {number} by @returns {Float64Array} */
export const times = (x, by) => Float64Array.from(x, (value) => value * by);

/**
 * Return the direction as a function of a norm's input, whose size counts as a constant.
 * @param {Norm} norm @param {Floats} x its input @param {Direction} after @returns {Direction}
 */
export function pullBackNorm({ kind, weight, bias, eps, group }, x, { along, constant, rounding }) {
  const isLayer = kind === "layer_norm", middle = isLayer ? mean(x) : 0;
  const scaled = new Float64Array(x.length);
  for (let first = 0; first < x.length; first += group) {
    const part = Float64Array.from(x.subarray(first, first + group), (value) => (value - middle) ** 2);
    const length = Math.sqrt(mean(part) + eps);
    for (let i = first; i < first + group; i++) scaled[i] = (along[i] ?? 0) * ((weight?.[i % weight.length] ?? 1) / length);
  }
  if (!isLayer) return { along: scaled, constant, rounding };
  const shift = bias ? dot(along, Float64Array.from(bias)) : 0, average = mean(scaled);
  return { along: scaled.map((value) => value - average), constant: constant + shift, rounding };
}

/** @param {Floats} x @returns {number} */
const mean = (x) => sum(x) / x.length;

/**
 * Return the direction as a function of a matrix's input.
 * @param {Float32Array} matrix (rows, columns) @param {number[] | null} bias @param {Float64Array | null} errors by rounding of the input
 * @param {Direction} after @returns {Direction}
 */
export function pullBackMatrix(matrix, bias, errors, { along, constant, rounding }) {
  const columns = matrix.length / along.length, sums = new Float64Array(columns);
  along.forEach((by, row) => {
    for (let i = 0, at = row * columns; i < columns; i++, at++) sums[i] = (sums[i] ?? 0) + by * /** @type {number} */ (matrix[at]);
  });
  const shift = bias ? dot(along, Float64Array.from(bias)) : 0;
  return { along: sums, constant: constant + shift, rounding: rounding + (errors ? dot(sums, errors) : 0) };
}

/** @param {Attention} of @param {number} n positions of a text @returns {number} the first that its last row sees */
export const firstSeen = ({ window }, n) => (window ? Math.max(n - window, 0) : 0);

/**
 * @param {Attention} attention @param {Float32Array} query (heads · head_dim) @param {Float32Array} keys (kv_heads, n, head_dim)
 * @param {number} n @returns {Float64Array} (heads, n), what softmax makes the weights of; −∞ before the window
 */
export function attentionScores(attention, query, keys, n) {
  const { heads, scale, softcap } = attention, seen = firstSeen(attention, n), scores = new Float64Array(heads * n).fill(-Infinity);
  for (let head = 0; head < heads; head++) {
    for (let i = seen; i < n; i++) {
      const score = scale * dot(...queryAndKey(attention, query, keys, n, head, i));
      scores[head * n + i] = softcap ? softcap * Math.tanh(score / softcap) : score;
    }
  }
  return scores;
}

/**
 * @param {Attention} attention @param {Float32Array} query @param {Float32Array} keys @param {number} n @param {number} head
 * @param {number} position @returns {[Float32Array, Float32Array]}
 */
export function queryAndKey({ heads, kv_heads, head_dim }, query, keys, n, head, position) {
  const from = (Math.floor((head * kv_heads) / heads) * n + position) * head_dim;
  return [query.subarray(head * head_dim, (head + 1) * head_dim), keys.subarray(from, from + head_dim)];
}

/** @param {Attention} attention @param {Float64Array} scores (heads, n) @param {number} n @returns {Float64Array} (heads, n), each row adds up to 1 */
export function attentionWeights({ heads, sinks }, scores, n) {
  const weights = Float64Array.from(scores);
  for (let head = 0; head < heads; head++) {
    const row = weights.subarray(head * n, (head + 1) * n);
    const sink = sinks?.[head] ?? -Infinity, top = row.reduce((largest, score) => Math.max(largest, score), sink);
    row.forEach((score, i) => (row[i] = Math.exp(score - top)));
    const all = sum(row) + Math.exp(sink - top);
    row.forEach((value, i) => (row[i] = value / all));
  }
  return weights;
}

/**
 * Return what each position adds to each head, along a direction of the heads' outputs.
 * @param {Attention} of @param {Float64Array} weights (heads, n) @param {Float32Array} values (kv_heads, n, value_dim)
 * @param {Float64Array} directions (heads · value_dim) @param {number} n @returns {Float64Array} (heads, n)
 */
export function attentionAlong({ heads, kv_heads, value_dim }, weights, values, directions, n) {
  const group = heads / kv_heads;
  return weights.map((weight, at) => {
    const head = Math.floor(at / n), from = (Math.floor(head / group) * n + (at % n)) * value_dim;
    return weight * dot(directions.subarray(head * value_dim, (head + 1) * value_dim), values.subarray(from, from + value_dim));
  });
}

/**
 * Return what each of the last tokens adds to a convolution's output, without the bias.
 * @param {Convolution} of @param {Float32Array} inputs of the last tokens (taps, width) @returns {Float64Array} (taps, width)
 */
export function convolutionTerms({ width, taps, weight }, inputs) {
  return Float64Array.from(inputs, (x, at) => x * /** @type {number} */ (weight[(at % width) * taps + Math.floor(at / width)]));
}

/**
 * Join the keys or values of the KV blocks that the last row sees: (kv_heads, n, width); 0 before them.
 * @param {(block: number) => Float32Array} block (kv_heads, KV_BLOCK, width) @param {Attention} attention @param {number} n
 * @param {number} width of a key, or of a value @returns {Float32Array}
 */
export function gatherBlocks(block, attention, n, width) {
  const { kv_heads } = attention, size = KV_BLOCK * width, numbers = new Float32Array(kv_heads * n * width);
  for (let first = Math.floor(firstSeen(attention, n) / KV_BLOCK) * KV_BLOCK; first < n; first += KV_BLOCK) {
    const heads = block(first / KV_BLOCK), count = Math.min(KV_BLOCK, n - first) * width;
    for (let head = 0; head < kv_heads; head++) {
      numbers.set(heads.subarray(head * size, head * size + count), (head * n + first) * width);
    }
  }
  return numbers;
}
