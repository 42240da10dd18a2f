/**
 * The end, drawn: a low line of the end token's probability by step, from 0.01 % to 100 % on a logarithmic scale, since most
 * steps are far below 1 %. A bar has the colour of what became of the end token: a stage's where that removed it, ink where
 * it was drawn. A flag is at the step that came closest and failed.
 */

import { bars, columnsOf, middleOf, peaks } from "../figures/columns.js";
import { endedByToken, findNearMiss, outcomeColour } from "../figures/endings.js";
import { height, percent } from "../figures/numbers.js";
import { box, group, label, mark, path } from "./marks.js";
/** @import { Mark } from "./marks.js" */
/** @import { Series } from "../figures/series.js" */

export const HIGH = 14; // pixels of 100 %
const WORDS = "almost ended here";
const ROOM = 260; // pixels for both words

/** @param {Series} series @param {number} width in pixels @returns {import("../figures/columns.js").Sight} */
const sightOf = ({ length }, width) => ({ first: 0, step: width / Math.max(length, 1), width, count: length });

/** @param {Series} series @param {number} width in pixels @param {number} [scale] of the type @returns {Mark[]} */
export function endLine(series, width, scale = 1) {
  const columns = columnsOf(sightOf(series, width));
  const share = (/** @type {number} */ i) => series.end[i] ?? 0;
  const colour = (/** @type {number} */ i) => (series.moments[i] ? outcomeColour(series.moments[i]?.letter ?? "?") : null);
  const lines = bars(columns, peaks(share, columns.edges), colour, (i) => Math.max(HIGH * height(share(i)), 1), HIGH);
  const near = findNearMiss(series.trace, series.moments);
  return [mark("line", { x1: 0, x2: width, y1: HIGH + 0.5, y2: HIGH + 0.5, class: "axis" }),
    ...[...lines].map(([fill, d]) => mark("path", { d, class: "measured", style: { fill } })),
    ...last(series, width, scale, near ? middleOf(sightOf(series, width), near.index) : 0),
    ...(near ? [flag(middleOf(sightOf(series, width), near.index), near.probability, width, scale)] : [])];
}

/** @param {number} x @param {number} share @param {number} width @param {number} scale @returns {Mark} */
function flag(x, share, width, scale) {
  const left = x < width / 2;
  return group("flag", path(`M${x} 0V${HIGH + 11 * scale}h${left ? 4 : -4}`, "axis"),
    label(x + (left ? 7 : -7), HIGH + 13 * scale, `${WORDS}: ${percent(share)}`, "label", { "text-anchor": left ? "start" : "end" }));
}

/** @param {Series} series @param {number} width @param {number} scale @param {number} flagX x of a flag @returns {Mark[]} words on the end that was drawn */
function last({ trace, moments }, width, scale, flagX) {
  const moment = endedByToken(trace) ? moments.at(-1) : null;
  if (!moment || width - flagX < ROOM * scale) return [];
  return [label(width, HIGH + 13 * scale, `ended here: ${percent(moment.probability)}`, "label", { "text-anchor": "end" })];
}

/** @param {Series} series @param {number} width @param {number} step the selected one @returns {Mark} */
export const endCursor = (series, width, step) =>
  box({ x: middleOf(sightOf(series, width), step) - 1, y: 0, width: 2, height: HIGH }, "chosen");
