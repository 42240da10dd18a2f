/**
 * The tracks beside a text that is a map: a strand for each line, which run side by side where the texts are one, part at a
 * fork, and join again. Beside its own text a strand is thick; where it only passes another's it is thin.
 */

import { mark, path } from "./marks.js";
/** @import { Mark } from "./marks.js" */

const [FIRST, TOGETHER, APART] = [3, 5, 13]; // pixels: the first strand, and from strand to strand

/** @param {number} count of lines @returns {number} pixels */
export const widthOf = (count) => FIRST * 2 + APART * (count - 1);

/** @param {number} line @param {boolean} isJoined @returns {number} x of its strand */
export const xOf = (line, isJoined) => FIRST + line * (isJoined ? TOGETHER : APART);

/** @param {number} line @param {number} x @param {string} kind @returns {Mark} */
const strand = (line, x, kind) => mark("line", { x1: x, x2: x, y1: 0, y2: "100%", class: `${kind} line-${line}` });

/** @param {number} count @returns {Mark[]} where the texts are one */
export const joinedTracks = (count) => Array.from({ length: count }, (_, i) => strand(i, xOf(i, true), "measured"));

/**
 * @param {number} count @param {number} line the line whose text is beside
 * @param {boolean} last whether no text follows in which they join: then the lines above have ended
 * @returns {Mark[]} the line's own strand last, over those that pass by
 */
export const ownTracks = (count, line, last) => [
  ...Array.from({ length: count }, (_, i) => i).filter((i) => i !== line && !(last && i < line)).map((i) => strand(i, xOf(i, false), "rest")),
  strand(line, xOf(line, false), "measured"),
];

/** @param {number} count @param {number} high pixels @param {boolean} parts whether they part here; else they join @returns {Mark[]} */
export const turns = (count, high, parts) => Array.from({ length: count }, (_, i) => {
  const [from, to] = [xOf(i, parts), xOf(i, !parts)];
  return path(`M${from} 0C${from} ${high / 2} ${to} ${high / 2} ${to} ${high}`, `measured line-${i}`);
});
