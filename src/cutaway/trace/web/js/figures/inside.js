/**
 * The figures of the inside of a step, as `cutaway.features.inside.summary` has them: positions, heads, the logit
 * lens, the logit attribution; and how strongly each position of the text is tinted.
 *
 * Knows the arrays of a StepInside. Knows no document.
 */

import { percent, probability, visible, withSign } from "./numbers.js";
/** @import { StepInside } from "../state/step-inside.js" */

/**
 * @typedef {{position: number, weight: number, attribution: number}} PositionFigures
 *
 * layer, head  which head; attribution: its part of the logit difference
 * sink         attention weight of position 0; previous: of the position before
 * same         of earlier positions of the last token; induction: of the tokens that followed those
 * entropy      of its weights, 0 to 1; most: the position with the largest weight; weight: that weight
 * @typedef {{layer: number, head: number, attribution: number, sink: number, previous: number, same: number,
 *   induction: number, entropy: number, most: number, weight: number}} HeadFigures
 *
 * drawnId: by the same luck; null: the chain cannot be repeated
 * @typedef {{layer: number, id: number, probability: number, rank: number, drawnId: number | null}} LensRow
 * @typedef {{name: string, attribution: number}} Component one term of the logit attribution
 * @typedef {"weight" | "attribution"} TintBy
 * @typedef {"attribution" | "sink" | "induction" | "entropy"} MapBy
 */

/** Rows of a table that could have thousands. */
export const MOST_ROWS = 8;
/** Levels of a tint, and of a cell's colour. */
export const LEVELS = 16;
const FIGURES = /** @type {const} */ ([
  "attribution", "sink", "previous", "same", "induction", "entropy", "most", "weight",
]);

/** @param {StepInside} inside @returns {PositionFigures[]} the mean weight of all heads, the sum of their attributions */
export function places(inside) {
  const all = inside.array("places");
  const count = inside.positions;
  return Array.from({ length: count }, (_, i) =>
    ({ position: i, weight: all[i] ?? 0, attribution: all[count + i] ?? 0 }));
}

/** @param {StepInside} inside @returns {HeadFigures[]} layer by layer */
export function heads(inside) {
  const all = inside.array("heads");
  const count = inside.layers * inside.heads;
  return Array.from({ length: count }, (_, i) => {
    const head = /** @type {HeadFigures} */ ({ layer: Math.floor(i / inside.heads), head: i % inside.heads });
    FIGURES.forEach((name, k) => (head[name] = all[k * count + i] ?? 0));
    return head;
  });
}

/** @template {{attribution: number}} T @param {T[]} all @returns {T[]} the largest first, of either sign */
export const sortByAttribution = (all) => all.toSorted((a, b) => Math.abs(b.attribution) - Math.abs(a.attribution));

/**
 * @param {StepInside} inside @param {"looked" | "attributed"} order by weight, or by attribution
 * @param {[number, number]} head layer and number @returns {PositionFigures[]} those with most
 */
export function placesOf(inside, order, [layer, head]) {
  const [at, weights, attributions] = ["positions", "weights", "attributions"]
    .map((name) => inside.array(`${order}.${name}`));
  const count = (at?.length ?? 0) / (inside.layers * inside.heads);
  const first = (layer * inside.heads + head) * count;
  return Array.from({ length: count }, (_, i) => ({ position: at?.[first + i] ?? 0,
    weight: weights?.[first + i] ?? 0, attribution: attributions?.[first + i] ?? 0 }));
}

/** @param {StepInside} inside @returns {LensRow[]} before the first layer (-1), and after each */
export function lensRows(inside) {
  const [ids, logprobs, rank] = ["ids", "logprobs", "rank"].map((name) => inside.array(`lens.${name}`));
  const drawnIds = inside.arrays.get("lens.drawn");
  return Array.from(ids ?? [], (id, i) => ({
    layer: i - 1, id, probability: probability(logprobs?.[i] ?? 0), rank: rank?.[i] ?? 0,
    drawnId: drawnIds ? drawnIds[i] ?? null : null,
  }));
}

/** @param {StepInside} inside @returns {Component[]} all that adds up to the total: also biases, and rounding as the last */
export function components(inside) {
  const values = inside.array("parts");
  const terms = (inside.metadata["parts"] ?? "").split(",").map((name, i) => ({ name, attribution: values[i] ?? 0 }));
  const bias = Number(inside.metadata["bias"]);
  return [...terms, ...(bias ? [{ name: "biases", attribution: bias }] : []),
    { name: "rounding", attribution: Number(inside.metadata["rounding"]) }];
}

/** @param {StepInside} inside @returns {number} the difference of the two logits */
export const total = (inside) => Number(inside.metadata["total"]);

/** @param {StepInside} inside @param {number} id @returns {string} */
export const nameIn = (inside, id) => visible(inside.names[id] ?? `[${id}]`);

/**
 * @param {StepInside} inside @param {TintBy} by @param {[number, number] | null} head null: all of them
 * @returns {PositionFigures[]} all on record, the largest first
 */
export function sortedPlaces(inside, by, head) {
  const positions = head ? placesOf(inside, by === "weight" ? "looked" : "attributed", head) : places(inside);
  return positions.sort((a, b) => Math.abs(b[by]) - Math.abs(a[by]) || a.position - b.position);
}

// -- tints ----------------------------------------------------------------------------------------

/** @param {number} share 0 to 1 @returns {number} its level, on a square-root scale */
const level = (share) => Math.round(LEVELS * Math.sqrt(Math.min(Math.max(share, 0), 1)));

/**
 * @param {StepInside} inside @param {TintBy} by @param {[number, number] | null} head null: all of them
 * @returns {Int8Array} by position: 0 to LEVELS; negative where the attribution is
 */
export function tints(inside, by, head) {
  const count = inside.positions;
  const levels = new Int8Array(count);
  if (by === "weight" && head) {
    const first = (head[0] * inside.heads + head[1]) * count;
    const row = inside.array("maps.weights").subarray(first, first + count);
    row.forEach((byte, i) => (levels[i] = Math.round((LEVELS * byte) / 255)));
  } else if (by === "weight") {
    inside.array("places").subarray(0, count).forEach((weight, i) => (levels[i] = level(weight)));
  } else {
    const positions = sortedPlaces(inside, by, head);
    const largest = Math.abs(positions[0]?.attribution ?? 0) || 1;
    for (const { position, attribution } of positions) {
      levels[position] = Math.sign(attribution) * level(Math.abs(attribution) / largest);
    }
  }
  return levels;
}

/** @param {HeadFigures[]} figures @param {MapBy} by @returns {Int8Array} by head: levels as those of tints */
export function cells(figures, by) {
  const largest = by === "attribution" ? Math.max(1e-9, ...figures.map(({ attribution }) => Math.abs(attribution))) : 1;
  return Int8Array.from(figures, (head) => (head[by] < 0 ? -1 : 1) * level(Math.abs(head[by]) / largest));
}

/** @param {StepInside} inside @param {number} depth @returns {string} "layer 3 in its run 2"; "" in a model that runs no layer again */
export function runName(inside, depth) {
  const [layer, run] = /** @type {number[]} */ (inside.value("runs")?.[depth] ?? []);
  return run === undefined ? "" : `layer ${layer} in its run ${run}`;
}

/** @param {StepInside} inside @param {number} depth @returns {string} "layer 19", or "layer 3 in its run 2, L19" */
export function layerName(inside, depth) {
  const run = runName(inside, depth);
  return run ? `${run}, L${depth}` : `layer ${depth}`;
}

// -- sentences ------------------------------------------------------------------------------------

/** @param {StepInside} inside @param {HeadFigures} head @param {string} topToken the token with its largest weight @returns {string} */
export const headSentence = (inside, head, topToken) =>
  `L${head.layer}.H${head.head}${runName(inside, head.layer) && `, of ${runName(inside, head.layer)}`}: attribution ${withSign(head.attribution, 3)}. Most attention: position ${head.most}, ${topToken} `
  + `(${percent(head.weight)}); position 0 ${percent(head.sink)}, previous token ${percent(head.previous)}, `
  + `induction ${percent(head.induction)}, entropy ${head.entropy.toFixed(2)}.`;

/**
 * @param {StepInside} inside @param {string} token
 * @returns {string} from which layer on the token is the likeliest, and drawn
 */
export function lensSentence(inside, token) {
  const settled = inside.value("lens_settled");
  const sentence = settled === null ? `after the last layer ${token} is not the likeliest`
    : `${token} stays the likeliest ${layerPhrase(inside, settled)}`;
  const drawSettled = inside.value("draw_settled");
  if (drawSettled === null) return `${sentence}; the draw of this run cannot be repeated here.`;
  return `${sentence}; with the same luck the draw is the same ${layerPhrase(inside, drawSettled)}.`;
}

/** @param {StepInside} inside @param {number} row @returns {string} */
const layerPhrase = (inside, row) => (row === 0 ? "from before the first layer on" : `from ${layerName(inside, row - 1)} on`);

/** @param {Component} component @param {number} before the sum of those before it @returns {string} */
export const componentSentence = ({ name, attribution }, before) =>
  `${name}: attribution ${withSign(attribution, 3)}, from ${withSign(before, 3)} to ${withSign(before + attribution, 3)}.`;
