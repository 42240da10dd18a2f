/**
 * Arcs over a text, from where a token is written to the tokens that are attended to: as thick as the share, broken where it
 * is negative. Between two lines they stay between these; on one line they rise above it.
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

/** @param {End} from @param {Target[]} targets @returns {Mark} the thickest first, so that it hides none */
export const arcs = (from, targets) => group("arcs", ...targets.map((target) => arc(from, target)));

/** @param {End} from @param {Target} target @returns {Mark} */
function arc(from, target) {
  const above = target.bottom <= from.top + 1; // on an earlier line
  const below = target.top >= from.bottom - 1;
  const [x, y] = [target.x, above ? target.bottom : target.top];
  const start = below ? from.bottom : from.top;
  const [first, second] = above || below ? [(start + y) / 2, (start + y) / 2] : [start, y].map((edge) => edge - rise(from, target));
  const d = `M${from.x.toFixed(1)} ${start.toFixed(1)}C${from.x.toFixed(1)} ${first?.toFixed(1)} ${x.toFixed(1)} ${second?.toFixed(1)} ${x.toFixed(1)} ${y.toFixed(1)}`;
  return group("to",
    mark("path", { class: `measured arc${target.share < 0 ? " negative" : ""}`, d, "stroke-width": (Math.abs(target.share) * THICK).toFixed(3) }),
    mark("circle", { class: "measured end", cx: x.toFixed(1), cy: y.toFixed(1), r: 2 }));
}

/** @param {End} from @param {End} to @returns {number} how far the curve's handles are above the line: within the text */
const rise = (from, to) => Math.min((4 / 3) * Math.min(9 + Math.abs(to.x - from.x) / 24, 22), (4 / 3) * Math.max(from.top - 2, 3));
