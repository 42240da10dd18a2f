/**
 * The inside of a step as the arrays that a page reads, with the figures of each head (src/cutaway/features/inside/summary.py).
 *
 * Knows names, shapes and orders; computes no weights.
 */

import { firstSeen, queryAndKey } from "./linear.js";

/**
 * @typedef {import("./inside.js").Look} Look
 * @typedef {import("./inside.js").Lens} Lens
 */

const MOST_PLACES = 8, SCALE = 255, TERM_LEVELS = 16;

/**
 * @param {Look} look @param {ReturnType<Look["attribution"]>} attribution @param {Lens} lens
 * @returns {[string, import("./safetensors.js").Numbers, number[]][]} as features/inside/summary.py has them
 */
export function arraysOf(look, attribution, lens) {
  const { n, ids, weights, anatomy: { attends } } = look, layers = weights.length, heads = look.heads((head) => head);
  const seen = attends.map((attends) => (attends ? firstSeen(attends, n) : n)), none = new Float64Array(heads.length * n);
  const rows = (/** @type {(Float64Array | null)[]} */ layers) => layers.flatMap((layer) => heads.map((head) => (layer ?? none).subarray(head * n, (head + 1) * n)));
  const byWeight = rows(weights), byAttribution = rows(attribution.positions), attributions = attribution.heads.flatMap((layer) => [...layer]);
  const figures = byWeight.map((row, i) => headFigures(row, attributions[i] ?? 0, ids, seen[Math.floor(i / heads.length)] ?? 0));
  const count = attends.filter((attends) => attends).length * heads.length;
  const sums = (/** @type {Float64Array[]} */ rows) => Array.from({ length: n }, (_, i) => rows.reduce((all, row) => all + (row[i] ?? 0), 0));
  const topArrays = (/** @type {string} */ name, /** @type {(value: number) => number} */ by, /** @type {Float64Array[]} */ order) => {
    const at = order.map((row) => largest(row, by)), shape = [layers, heads.length, Math.min(MOST_PLACES, n)];
    const pick = (/** @type {Float64Array[]} */ rows) => Float32Array.from(at.flatMap((places, i) => places.map((place) => rows[i]?.[place] ?? 0)));
    return /** @type {[string, import("./safetensors.js").Numbers, number[]][]} */ ([
      [`${name}.positions`, Int32Array.from(at.flat()), shape], [`${name}.weights`, pick(byWeight), shape],
      [`${name}.attributions`, pick(byAttribution), shape]]);
  };
  const topWeights = topArrays("looked", (value) => value, byWeight), at = /** @type {Int32Array} */ (topWeights[0]?.[1]);
  return [
    ["places", Float32Array.from([...sums(byWeight).map((all) => all / count), ...sums([...byAttribution, ...attribution.convolutions])]), [2, n]],
    ["heads", Float32Array.from(Array.from({ length: 8 }, (_, k) => figures.map((figure) => figure[k] ?? 0)).flat()), [8, layers, heads.length]],
    ...topWeights, ...topArrays("attributed", Math.abs, byAttribution),
    ["parts", Float32Array.from(attribution.parts), [attribution.parts.length]], ["rounded", Float32Array.from(attribution.rounded), [layers]],
    ["first_seen", Int32Array.from(seen), [layers]], ["token_ids", Int32Array.from(ids), [n]],
    ["lens.ids", lens.ids, [layers + 1]], ["lens.logprobs", lens.logprobs, [layers + 1]], ["lens.rank", lens.rank, [layers + 1]],
    ...(lens.drawn ? [/** @type {[string, Int32Array, number[]]} */ (["lens.drawn", lens.drawn, [layers + 1]])] : []),
    ...scoresOf(look, at, seen),
    ["maps.weights", Uint8Array.from(byWeight.flatMap((row) => [...row].map((weight) => Math.round(Math.sqrt(weight) * SCALE)))), [layers, heads.length, n]],
  ];
}

/**
 * @param {Look} look @param {Int32Array} at the positions of each head with the largest weights @param {number[]} seen by layer
 * @returns {[string, import("./safetensors.js").Numbers, number[]][]} their scores, the largest term of q·k of each, and all terms
 */
function scoresOf({ n, keys, queries, scores, anatomy: { attends } }, at, seen) {
  const layers = attends.length, heads = attends.find((op) => op)?.heads ?? 0, places = Math.min(MOST_PLACES, n);
  const wide = attends.reduce((width, op) => Math.max(width, op?.head_dim ?? 0), 0);
  const placeScores = new Float32Array(at.length).fill(-Infinity), all = new Float64Array(at.length * wide);
  at.forEach((position, i) => {
    const head = Math.floor(i / places), layer = Math.floor(head / heads), op = attends[layer], [query, key] = [queries[layer], keys[layer]];
    if (!op || !query || !key) return;
    placeScores[i] = scores[layer]?.[(head % heads) * n + position] ?? 0;
    if (position < (seen[layer] ?? 0)) return;
    const [q, k] = queryAndKey(op, query, key, n, head % heads, position);
    q.forEach((value, d) => (all[i * wide + d] = op.scale * (value * (k[d] ?? 0))));
  });
  const maxima = Float64Array.from(at, (_, i) => all.subarray(i * wide, (i + 1) * wide).reduce((top, value) => Math.max(top, Math.abs(value)), 0));
  return [["looked.scores", placeScores, [layers, heads, places]], ["looked.most", Float32Array.from(maxima), [layers, heads, places]],
    ["looked.terms", Uint8Array.from(all, (value, i) =>
      Math.round((value / Math.max(maxima[Math.floor(i / wide)] ?? 0, 1e-30)) * TERM_LEVELS) + TERM_LEVELS), [layers, heads, places, wide]]];
}

/** @param {Float64Array} row @param {(value: number) => number} by @returns {number[]} where it has most; of equals the first */
const largest = (row, by) => [...row.keys()].sort((a, b) => by(row[b] ?? 0) - by(row[a] ?? 0) || a - b).slice(0, MOST_PLACES);

/**
 * @param {Float64Array} weights @param {number} attribution @param {number[]} ids @param {number} seen the first that is seen
 * @returns {number[]} attribution, sink, previous, same, induction, entropy, most, weight (features/inside/summary.py)
 */
function headFigures(weights, attribution, ids, seen) {
  const n = ids.length, count = n - seen, [top = 0] = largest(weights, (value) => value);
  let same = 0, induction = 0, entropy = 0;
  for (let i = 0; i < n; i++) {
    const weight = weights[i] ?? 0;
    if (weight > 0) entropy -= weight * Math.log(weight);
    if (i < n - 1 && ids[i] === ids[n - 1]) same += weight;
    if (i < n - 1 && i > 0 && ids[i - 1] === ids[n - 1]) induction += weight;
  }
  return [attribution, weights[0] ?? 0, count > 1 ? weights[n - 2] ?? 0 : 0, same, induction, count > 1 ? entropy / Math.log(count) : 0, top, weights[top] ?? 0];
}
