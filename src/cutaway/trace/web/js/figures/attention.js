/**
 * The attention of a step as figures: the positions that arcs lead to, the scores of a head before and after softmax with
 * the terms of their q·k, and what layers with a state keep of each token.
 *
 * Knows the arrays of a StepInside. Knows no document.
 */

import { LEVELS, MOST_ROWS, nameIn, placesOf, sortedPlaces } from "./inside.js";
import { percent, thousands, withSign } from "./numbers.js";
const MOST_STATES = 512; // tokens of a text whose states are looked into (docs/inside.md)

/** @import { PositionFigures, TintBy } from "./inside.js" */
/** @import { StepInside } from "../state/step-inside.js" */
/** @import { InsideSelection } from "../state/store.js" */

/**
 * score  before softmax; null: the file has none, or it is of all heads; −∞: outside the layer's window
 * terms  of scale · q·k, each to a 32nd of the largest; empty where the score is null
 * @typedef {PositionFigures & {score: number | null, terms: Float32Array}} Attended
 *
 * whole  the logarithm of what softmax divides by: a weight is exp(score − whole); null where no score is known
 * other  how many positions have no row, and their weight together
 * @typedef {{rows: Attended[], whole: number | null, other: {count: number, weight: number}}} Attention
 *
 * keeps  each token's share of what the layer's heads read from their states
 * half   how many of the last tokens have half of it
 * @typedef {{layer: number, keeps: Float32Array, half: number}} StateLayer
 */

/** @param {StepInside} inside @returns {boolean} whether any layer attends */
export const attends = (inside) => layersAttending(inside).some(Boolean);

/** @param {StepInside} inside @returns {boolean[]} of each layer, whether it attends; the others keep a state */
export const layersAttending = (inside) => Array.from(inside.array("first_seen"), (first) => first < inside.positions);

/** @param {StepInside} inside @param {InsideSelection} selection @returns {TintBy} what tints the text: where nothing attends, attribution */
export const tintedBy = (inside, { by }) => (by === "attribution" || !attends(inside) ? "attribution" : "weight");

/** @param {StepInside} inside @param {TintBy} by @param {[number, number] | null} head @returns {PositionFigures[]} the positions that arcs lead to, the largest first */
export const arcPlaces = (inside, by, head) => sortedPlaces(inside, by, head).slice(0, MOST_ROWS).filter((place) => place[by] !== 0);

/** @param {StepInside} inside @param {[number, number] | null} head null: the mean of all @returns {Attention} */
export function attention(inside, head) {
  const rows = (head ? placesOf(inside, "looked", head) : sortedPlaces(inside, "weight", null).slice(0, MOST_ROWS))
    .map((place, i) => ({ ...place, ...(head ? readScore(inside, head, i) : { score: null, terms: new Float32Array() }) }));
  const [first] = rows;
  const weight = Math.max(0, 1 - rows.reduce((all, row) => all + row.weight, 0));
  return { rows, whole: first && first.score !== null && first.weight > 0 ? first.score - Math.log(first.weight) : null,
    other: { count: inside.positions - rows.length, weight } };
}

/** @param {StepInside} inside @param {[number, number]} head @param {number} i which of its positions @returns {Pick<Attended, "score" | "terms">} */
function readScore(inside, [layer, head], i) {
  const scores = inside.array("looked.scores");
  const place = ((layer * inside.heads + head) * scores.length) / (inside.layers * inside.heads) + i;
  const bytes = inside.array("looked.terms");
  const wide = bytes.length / (scores.length || 1);
  const maximum = inside.array("looked.most")[place] ?? 0;
  return { score: scores[place] ?? null,
    terms: Float32Array.from(bytes.subarray(place * wide, (place + 1) * wide), (byte) => (maximum * (byte - LEVELS)) / LEVELS) };
}

/** @param {StepInside} inside @returns {StateLayer[]} the layers with a recurrent state whose shares are known */
export function stateLayers(inside) {
  const all = inside.array("kept");
  return /** @type {number[]} */ (inside.value("kept") ?? []).map((layer, i) => {
    const keeps = /** @type {Float32Array} */ (all.subarray(i * inside.positions, (i + 1) * inside.positions));
    return { layer, keeps, half: half(keeps) };
  });
}

/** @param {Float32Array} shares @returns {number} how many of the last have half of the sum */
function half(shares) {
  const target = shares.reduce((all, share) => all + share, 0) / 2;
  let [count, sum] = [0, 0];
  while (count < shares.length && sum < target) sum += shares[shares.length - ++count] ?? 0;
  return count;
}

// -- sentences ------------------------------------------------------------------------------------

/** @param {[number, number] | null} head @returns {string} */
export const headName = (head) => (head ? `L${head[0]}.H${head[1]}` : "mean of all heads");

/** @param {number} score @param {number} [digits] @returns {string} −∞ where a window hides the position */
export const scoreText = (score, digits) => (Number.isFinite(score) ? withSign(score, digits) : "−∞");

/**
 * @param {Attention} attention @param {[number, number] | null} head @param {(position: number) => string} tokenAt
 * @returns {string} what the drawing of a head says
 */
export function attentionSentence({ rows, whole }, head, tokenAt) {
  const list = rows.map(({ position, weight, score }) =>
    `${tokenAt(position)} ${score === null ? "" : `score ${scoreText(score)}, `}weight ${percent(weight)}`).join("; ");
  return `${headName(head)}, by softmax of ${whole === null ? "each head's scores" : "the scores"}: ${list}.`;
}

/** @param {StepInside} inside @param {import("./inside.js").LensRow[]} rows @returns {string} what the tower says */
export function towerSentence(inside, rows) {
  const ranks = rows.map(({ rank }) => thousands(rank)).join(", ");
  return `The likeliest token after each layer, from the first up: ${rows.map(({ id }) => nameIn(inside, id)).join(", ")}. `
    + `The rank of ${nameIn(inside, inside.token)} there: ${ranks}.`;
}

/** @param {StateLayer[]} layers @returns {string} what the bands say */
export function statesSentence(layers) {
  const list = layers.map(({ layer, half: count }) => `L${layer} from ${count === 1 ? "the last token" : `the last ${thousands(count)}`}`).join(", ");
  return `Half of what these layers read from their states comes: ${list}.`;
}

/** @param {StepInside} inside @returns {string} which layers attend to nothing, and why there may be no bands; "" where all attend */
export function stateSentence(inside) {
  const all = layersAttending(inside);
  const names = all.flatMap((yes, layer) => (yes ? [] : [`L${layer}`]));
  if (!names.length) return "";
  const subject = names.length === all.length ? "No layer of this model attends: each keeps" : `${names.join(", ")} ${names.length === 1 ? "does not attend: it keeps" : "do not attend: they keep"}`;
  return `${subject} a state.${inside.value("kept") === null && inside.positions > MOST_STATES ? ` What is kept of each token is shown for texts of at most ${MOST_STATES} tokens.` : ""}`;
}
