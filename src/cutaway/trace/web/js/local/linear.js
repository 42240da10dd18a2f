/**
 * A row as linear functions: norms and matrices between heads and logits, their rounding, and attention
 * (src/cutaway/features/inside/logit_attribution.py and attention.py).
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
 * @typedef {{heads: number, kv_heads: number, head_dim: number, scale: number, softcap: number, window: number,
 *   sinks: number[] | null}} Attention
 * weight: (width, taps), the oldest token's first
 * @typedef {{width: number, taps: number, weight: number[], bias: number[] | null}} Convolution
 */

const QUANT = 32, TINY = Math.fround(1e-36);

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

/** @param {Float32Array} x @returns {Float64Array} what is added to activations that a quantised matrix reads: every 32 are whole steps */
export function rounding(x) {
  const errors = new Float64Array(x.length);
  for (let first = 0; first < x.length; first += QUANT) {
    const block = x.subarray(first, first + QUANT);
    const peak = block.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0);
    const inverse = peak > TINY ? Math.fround(127 / peak) : 0, step = Math.fround(peak / 127);
    block.forEach((value, i) => (errors[first + i] = Math.fround(even(Math.fround(value * inverse)) * step) - value));
  }
  return errors;
}

/** @param {number} value @returns {number} the nearest whole number, of two the even one */
function even(value) {
  const below = Math.floor(value), rest = value - below;
  return rest < 0.5 || (rest === 0.5 && below % 2 === 0) ? below : below + 1;
}

/** @param {Attention} of @param {number} n positions of a text @returns {number} the first that its last row sees */
export const firstSeen = ({ window }, n) => (window ? Math.max(n - window, 0) : 0);

/**
 * @param {Attention} attention @param {Float32Array} query (heads · head_dim) @param {Float32Array} keys (kv_heads, n, head_dim)
 * @param {number} n @returns {Float64Array} (heads, n), each row adds up to 1; 0 before the window
 */
export function attentionWeights(attention, query, keys, n) {
  const { heads, kv_heads, head_dim, scale, softcap, sinks } = attention, seen = firstSeen(attention, n);
  const weights = new Float64Array(heads * n), group = heads / kv_heads;
  for (let head = 0; head < heads; head++) {
    const q = query.subarray(head * head_dim, (head + 1) * head_dim), row = weights.subarray(head * n, (head + 1) * n);
    const first = Math.floor(head / group) * n * head_dim;
    row.fill(-Infinity, 0, seen);
    for (let i = seen; i < n; i++) {
      const score = scale * dot(q, keys.subarray(first + i * head_dim, first + (i + 1) * head_dim));
      row[i] = softcap ? softcap * Math.tanh(score / softcap) : score;
    }
    const sink = sinks?.[head] ?? -Infinity, top = row.reduce((largest, score) => Math.max(largest, score), sink);
    row.forEach((score, i) => (row[i] = Math.exp(score - top)));
    const all = sum(row) + Math.exp(sink - top);
    row.forEach((value, i) => (row[i] = value / all));
  }
  return weights;
}

/**
 * Return what each position adds to each head, along a direction of the heads' outputs.
 * @param {Attention} of @param {Float64Array} weights (heads, n) @param {Float32Array} values (kv_heads, n, head_dim)
 * @param {Float64Array} directions (heads · head_dim) @param {number} n @returns {Float64Array} (heads, n)
 */
export function attentionAlong({ heads, kv_heads, head_dim }, weights, values, directions, n) {
  const group = heads / kv_heads;
  return weights.map((weight, at) => {
    const head = Math.floor(at / n), from = (Math.floor(head / group) * n + (at % n)) * head_dim;
    return weight * dot(directions.subarray(head * head_dim, (head + 1) * head_dim), values.subarray(from, from + head_dim));
  });
}

/**
 * Return what each of the last tokens adds to a convolution's output, without the bias.
 * @param {Convolution} of @param {Float32Array} inputs of the last tokens (taps, width) @returns {Float64Array} (taps, width)
 */
export function convolutionTerms({ width, taps, weight }, inputs) {
  return Float64Array.from(inputs, (x, at) => x * /** @type {number} */ (weight[(at % width) * taps + Math.floor(at / width)]));
}

/** Every half as a float. */
const HALVES = Float32Array.from({ length: 1 << 16 }, (_, bits) => {
  const exponent = (bits >> 10) & 31, fraction = bits & 1023, sign = bits >> 15 ? -1 : 1;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
});

/** @param {number} head_dim @returns {number} numbers of a stored value */
export const paddedWidth = (head_dim) => Math.ceil(head_dim / 16) * 16;

/**
 * Join the keys or values of the KV blocks that the last row sees: (kv_heads, n, head_dim); 0 before them.
 * @param {(block: number, count: number) => Uint16Array} block @param {Attention} attention @param {boolean} values else keys
 * @param {number} n @returns {Float32Array}
 */
export function gatherBlocks(block, attention, values, n) {
  const { kv_heads, head_dim } = attention, stride = values ? paddedWidth(head_dim) : head_dim, numbers = new Float32Array(kv_heads * n * head_dim);
  for (let first = Math.floor(firstSeen(attention, n) / KV_BLOCK) * KV_BLOCK; first < n; first += KV_BLOCK) {
    const halves = block(first / KV_BLOCK, kv_heads * stride * KV_BLOCK);
    for (let head = 0; head < kv_heads; head++) {
      for (let i = first; i < Math.min(first + KV_BLOCK, n); i++) {
        for (let d = 0; d < head_dim; d++) {
          const at = head * stride * KV_BLOCK + (values ? (i - first) * stride + d : d * KV_BLOCK + i - first);
          numbers[(head * n + i) * head_dim + d] = HALVES[halves[at] ?? 0] ?? 0;
        }
      }
    }
  }
  return numbers;
}
