/**
 * The figures of a look, as `cutaway.lab.inside.summary` has them: places, heads, the lens, pushes. And
 * how much of a tint each position of the text has.
 *
 * Knows a look's arrays. Knows no document.
 */

import { percent, probability, signed, visible } from "./numbers.js";
/** @import { Look } from "../state/look.js" */

/**
 * @typedef {{position: number, weight: number, push: number}} Place
 *
 * sink: weight of position 0; previous: of the position before; same: of earlier places of the last
 * token; induction: of what followed those; entropy: of its weights, 0 to 1; most: where it looks most
 * @typedef {{layer: number, head: number, push: number, sink: number, previous: number, same: number,
 *   induction: number, entropy: number, most: number, weight: number}} Head
 *
 * drawn: by the same luck; null: the chain cannot be repeated
 * @typedef {{layer: number, id: number, probability: number, rank: number, drawn: number | null}} LensRow
 * @typedef {{name: string, push: number}} Part
 * @typedef {"weight" | "push"} Measure
 * @typedef {"push" | "sink" | "induction" | "entropy"} MapBy
 */

/** Rows of a table that could have thousands. */
export const MOST = 8;
/** Steps of a tint, and of a cell's colour. */
export const LEVELS = 16;
const FIGURES = /** @type {const} */ ([
  "push", "sink", "previous", "same", "induction", "entropy", "most", "weight",
]);

/** @param {Look} look @returns {Place[]} mean weight of all heads, sum of their pushes */
export function places(look) {
  const all = look.array("places");
  const count = look.positions;
  return Array.from({ length: count }, (_, i) =>
    ({ position: i, weight: all[i] ?? 0, push: all[count + i] ?? 0 }));
}

/** @param {Look} look @returns {Head[]} layer by layer */
export function heads(look) {
  const all = look.array("heads");
  const count = look.layers * look.heads;
  return Array.from({ length: count }, (_, i) => {
    const head = /** @type {Head} */ ({ layer: Math.floor(i / look.heads), head: i % look.heads });
    FIGURES.forEach((name, k) => (head[name] = all[k * count + i] ?? 0));
    return head;
  });
}

/** @param {Head[]} every @param {number} count @returns {Head[]} those that pushed most, up or down */
export const byPush = (every, count) =>
  [...every].sort((a, b) => Math.abs(b.push) - Math.abs(a.push)).slice(0, count);

/**
 * @param {Look} look @param {"looked" | "attributed"} order
 * @param {[number, number]} head layer and number @returns {Place[]} where it looked, or pushed, most
 */
export function placesOf(look, order, [layer, head]) {
  const [at, weights, pushes] = ["positions", "weights", "attributions"].map((name) => look.array(`${order}.${name}`));
  const many = (at?.length ?? 0) / (look.layers * look.heads);
  const first = (layer * look.heads + head) * many;
  return Array.from({ length: many }, (_, i) =>
    ({ position: at?.[first + i] ?? 0, weight: weights?.[first + i] ?? 0, push: pushes?.[first + i] ?? 0 }));
}

/** @param {Look} look @returns {LensRow[]} before the first layer (-1), and after each */
export function lensRows(look) {
  const [ids, logprobs, rank] = ["ids", "logprobs", "rank"].map((name) => look.array(`lens.${name}`));
  const drawn = look.arrays.get("lens.drawn");
  return Array.from(ids ?? [], (id, i) => ({
    layer: i - 1, id, probability: probability(logprobs?.[i] ?? 0), rank: rank?.[i] ?? 0,
    drawn: drawn ? drawn[i] ?? null : null,
  }));
}

/** @param {Look} look @returns {Part[]} all that adds up to the total, roundings and biases too */
export function parts(look) {
  const pushes = look.array("parts");
  const named = (look.told["parts"] ?? "").split(",").map((name, i) => ({ name, push: pushes[i] ?? 0 }));
  const bias = Number(look.told["bias"]);
  return [...named, ...(bias ? [{ name: "biases", push: bias }] : []),
    { name: "rounding", push: Number(look.told["rounding"]) }];
}

/** @param {Look} look @returns {number} the difference of both logits */
export const total = (look) => Number(look.told["total"]);

/** @param {Look} look @param {number} id @returns {string} a token that the look names */
export const nameIn = (look, id) => visible(names(look)[id] ?? `[${id}]`);

/** @type {WeakMap<Look, Record<number, string>>} */
const NAMES = new WeakMap();

/** @param {Look} look @returns {Record<number, string>} */
function names(look) {
  const known = NAMES.get(look) ?? look.value("names") ?? {};
  NAMES.set(look, known);
  return known;
}

/**
 * @param {Look} look @param {Measure} by @param {[number, number] | null} head null: all of them
 * @returns {Place[]} all that is told of them, most first
 */
export function ordered(look, by, head) {
  const told = head ? placesOf(look, by === "weight" ? "looked" : "attributed", head) : places(look);
  return told.sort((a, b) => Math.abs(b[by]) - Math.abs(a[by]) || a.position - b.position);
}

// -- tints ----------------------------------------------------------------------------------------

/** @param {number} share 0 to 1 @returns {number} its step of the scale, which is of square roots */
const level = (share) => Math.round(LEVELS * Math.sqrt(Math.min(Math.max(share, 0), 1)));

/**
 * @param {Look} look @param {Measure} by @param {[number, number] | null} head null: all of them
 * @returns {Int8Array} by position: 0 to LEVELS; below zero where a push is one away from the token
 */
export function tints(look, by, head) {
  const count = look.positions;
  const made = new Int8Array(count);
  if (by === "weight" && head) {
    const first = (head[0] * look.heads + head[1]) * count;
    const row = look.array("maps.weights").subarray(first, first + count);
    row.forEach((byte, i) => (made[i] = Math.round((LEVELS * byte) / 255)));
  } else if (by === "weight") {
    look.array("places").subarray(0, count).forEach((weight, i) => (made[i] = level(weight)));
  } else {
    const told = ordered(look, by, head);
    const most = Math.abs(told[0]?.push ?? 0) || 1;
    for (const { position, push } of told) made[position] = Math.sign(push) * level(Math.abs(push) / most);
  }
  return made;
}

/** @param {Head[]} every @param {MapBy} by @returns {Int8Array} by head, as tints are */
export function cells(every, by) {
  const most = by === "push" ? every.reduce((high, { push }) => Math.max(high, Math.abs(push)), 1e-9) : 1;
  return Int8Array.from(every, (head) => (head[by] < 0 ? -1 : 1) * level(Math.abs(head[by]) / most));
}

// -- sentences ------------------------------------------------------------------------------------

/** @param {Head} head @param {string} most the token that it looks at most @returns {string} */
export const headSentence = (head, most) =>
  `L${head.layer}.H${head.head}: attribution ${signed(head.push, 3)}. It looks most at ${head.most} ${most} `
  + `(${percent(head.weight)}); position 0 ${percent(head.sink)}, the one before ${percent(head.previous)}, `
  + `induction ${percent(head.induction)}, spread ${head.entropy.toFixed(2)}.`;

/**
 * @param {Look} look @param {string} token @returns {string} from where on it is the likeliest, and drawn
 */
export function lensSentence(look, token) {
  const settled = look.value("lens_settled");
  const said = settled === null ? `${token} is never the likeliest for good`
    : `${token} stays the likeliest ${from(settled)}`;
  const drawn = look.value("draw_settled");
  if (drawn === null) return `${said}; the chain of this run cannot be repeated here.`;
  return `${said}; with this luck the draw is what it was ${from(drawn)}.`;
}

/** @param {number} row @returns {string} */
const from = (row) => (row === 0 ? "from before the first layer on" : `from layer ${row - 1} on`);

/** @param {Part} part @param {number} before what the parts before it add up to @returns {string} */
export const partSentence = (part, before) =>
  `${part.name}: attribution ${signed(part.push, 3)}, from ${signed(before, 3)} to ${signed(before + part.push, 3)}.`;
