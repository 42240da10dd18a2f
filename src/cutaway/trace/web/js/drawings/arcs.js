/**
 * Arcs over a text, from where a token is written to the tokens that are attended to: as thick as the share, broken where it
 * is negative. Between two lines they stay between these; on one line they rise above it, and to their own token they are a loop.
 */

import { group, mark } from "./marks.js";
/** @import { Mark } from "./marks.js" */

/**
 * x, top, bottom  of an end, in pixels of the text
 * @typedef {{x: number, top: number, bottom: number}} End
 * share  −1 to 1
 * @typedef {End & {share: number}} Target
 */

/** Pixels of an arc whose share is 1. */
export const THICK = 16;
const LOOP = 12; // pixels to both sides

/** @param {End} from @param {Target[]} targets @returns {Mark} the thickest first, so that it hides none */
export const arcs = (from, targets) => group("arcs", ...targets.map((target) => arc(from, target)));

/** @param {End} from @param {Target} target @returns {Mark} */
function arc(from, target) {
  const above = target.bottom <= from.top + 1; // on an earlier line
  const below = target.top >= from.bottom - 1;
  const [x, y] = [target.x, above ? target.bottom : target.top];
  const start = below ? from.bottom : from.top;
  const [first, second] = above || below ? [(start + y) / 2, (start + y) / 2] : [start, y].map((edge) => edge - rise(from, target));
  const loop = Math.abs(x - from.x) < 1 && start === y ? LOOP : 0;
  const [a, b] = [[from.x - loop, first], [x + loop, second]].map(xy);
  const d = `M${xy([from.x, start])}C${a} ${b} ${xy([x, y])}`;
  return group("to",
    mark("path", { class: `measured arc${target.share < 0 ? " negative" : ""}`, d, "stroke-width": (Math.abs(target.share) * THICK).toFixed(3) }),
    mark("circle", { class: "measured end", cx: x.toFixed(1), cy: y.toFixed(1), r: 2 }));
}

/** @param {(number | undefined)[]} point @returns {string} */
const xy = ([x = 0, y = 0]) => `${x.toFixed(1)} ${y.toFixed(1)}`;

/** @param {End} from @param {End} to @returns {number} how far the curve's handles are above the line: within the text */
const rise = (from, to) => Math.min((4 / 3) * Math.min(9 + Math.abs(to.x - from.x) / 24, 22), (4 / 3) * Math.max(from.top - 2, 3));
