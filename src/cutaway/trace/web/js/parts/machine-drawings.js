/**
 * The drawings of the machine's stations. Each shows figures of the step: the row of the embedding matrix, the likeliest
 * tokens' probabilities, how many tokens each stage left, how the draw went. Knows shapes, and no store.
 */

import { svg } from "./dom.js";
import { visible } from "../figures/numbers.js";
/** @import { Shown } from "../figures/machine.js" */

const [WIDE, HIGH] = [96, 48];
const MIDDLE = HIGH / 2;
const MOST_PLATES = 8;
const LONGEST = 10; // characters of a token that fit on its card

/** @type {Record<string, (shown: Shown) => SVGElement[]>} */
const DRAWINGS = { tokens, embedding, layers, logits, chain, luck, token };

/** @param {string} id of a station @param {Shown} picture @returns {SVGElement} */
export const drawing = (id, picture) => svg("svg", { class: "drawing", viewBox: `0 0 ${WIDE} ${HIGH}`, "aria-hidden": "true" },
  ...(DRAWINGS[id]?.(picture) ?? []));

/** @param {number} x @param {number} y @param {number} width @param {number} height @param {string} kind */
const box = (x, y, width, height, kind) => svg("rect", { x, y, width, height, rx: 2, class: kind });

/** @param {string} d @param {string} kind */
const path = (d, kind) => svg("path", { d, class: kind });

/** @param {Shown} shown @returns {SVGElement[]} cards in a row, the last one next; of a canvas, some are masked */
function tokens({ masks = [false, false, false, false] }) {
  return masks.flatMap((masked, i) => {
    const x = 6 + i * 22;
    const last = i === masks.length - 1 && !masks.includes(true);
    const mark = masked ? path(`M${x + 6} ${MIDDLE}h6`, "line") : path(`M${x + 4} ${MIDDLE - 3}h10M${x + 4} ${MIDDLE + 3}h7`, "line");
    return [box(x, MIDDLE - 12, 18, 24, masked ? "part masked" : last ? "part chosen" : "part"), mark];
  });
}

/** @param {Shown} shown @returns {SVGElement[]} a matrix, and the token's row in it */
function embedding({ row }) {
  const [top, high] = [4, 40];
  const lines = Array.from({ length: 7 }, (_, i) => `M22 ${top + (i + 1) * 5}h52`).join("");
  const columns = Array.from({ length: 3 }, (_, i) => `M${35 + i * 13} ${top}v${high}`).join("");
  const tokenRow = row === undefined ? [] : [box(22, top + Math.min(Math.floor(row * 8), 7) * 5, 52, 5, "full")];
  return [box(22, top, 52, high, "part"), path(lines + columns, "line"), ...tokenRow];
}

/**
 * @param {Shown} shown
 * @returns {SVGElement[]} a stack of plates, cut open in front: attention above, MLP below. Plates after which the token
 *   was the likeliest are coloured.
 */
function layers({ layers: count = 1, settled = null }) {
  const plates = Math.min(count, MOST_PLATES);
  const backPlates = Array.from({ length: plates - 1 }, (_, i) => {
    const x = 8 + (i * 40) / plates;
    const y = 2 + ((plates - 1 - i) * 6) / plates;
    const lit = settled !== null && (i + 1) / plates >= settled;
    return path(`M${x} ${y + 4}l6-4v36l-6 4z`, lit ? "part chosen" : "part");
  });
  const x = 8 + (40 * (plates - 1)) / plates;
  const lit = settled !== null && settled <= 1;
  return [...backPlates, box(x, 5, 88 - x, 18, lit ? "part chosen" : "part"), box(x, 24, 88 - x, 18, lit ? "part chosen" : "part"),
    ...attention(x), ...mlp(x)];
}

/** @param {number} x @returns {SVGElement[]} earlier tokens, read by the last one */
function attention(x) {
  const [left, right] = [x + 5, 83];
  const dots = [0, 1, 2, 3].map((i) => left + (i * (right - left)) / 3);
  return [...dots.slice(0, 3).map((from) => path(`M${from} 19Q${(from + right) / 2} 3 ${right} 19`, "thin")),
    ...dots.map((cx) => svg("circle", { cx, cy: 19, r: 1.6, class: "dot" }))];
}

/** @param {number} x @returns {SVGElement[]} narrow, wide, narrow */
function mlp(x) {
  const [left, right] = [x + 6, 82];
  const middle = (left + right) / 2;
  const wide = [27, 31, 35, 39];
  return [path(wide.flatMap((y) => [`M${left} 33L${middle} ${y}`, `M${middle} ${y}L${right} 33`]).join(""), "thin"),
    ...[[left, 33], [right, 33], ...wide.map((y) => [middle, y])].map(([cx, cy]) => svg("circle", { cx, cy, r: 1.6, class: "dot" }))];
}

/** @param {Shown} shown @returns {SVGElement[]} the likeliest tokens' probabilities */
function logits({ shares = [] }) {
  const largest = Math.max(...shares.map(({ share }) => share), 1e-9);
  return [box(10, 3, 76, 42, "part"), ...shares.map(({ share, isChosen }, i) => {
    const high = Math.max(1, 36 * share / largest);
    return svg("rect", { x: 14 + i * 8.8, y: 42 - high, width: 6.4, height: high, class: isChosen ? "full" : "bar" });
  })];
}

/** @param {Shown} shown @returns {SVGElement[]} a channel that each stage narrows to the tokens that it left */
function chain({ open = [] }) {
  const gates = open.map(({ share, colour }, i) => ({ x: 12 + ((i + 1) * 72) / (open.length + 1), half: Math.max(1.5, 19 * share), colour }));
  const points = [{ x: 6, half: 19 }, ...gates, { x: 90, half: gates.at(-1)?.half ?? 19 }];
  const edge = (/** @type {number} */ sign) => points.map(({ x, half }) => `${x},${MIDDLE + sign * half}`);
  return [svg("polygon", { points: [...edge(-1), ...edge(1).reverse()].join(" "), class: "part flow" }),
    ...gates.flatMap(({ x, half, colour }) => [[2, MIDDLE - half - 2], [MIDDLE + half, HIGH - MIDDLE - half - 2]].map(([y, height]) =>
      svg("rect", { x: x - 2.5, y, width: 5, height: Math.max(0, height ?? 0), class: "gate", style: { fill: colour } })))];
}

/** @param {Shown} shown @returns {SVGElement[]} a die, and the two highest scores: from log-probability, by luck, to the score */
function luck({ race = [] }) {
  const xOf = (/** @type {number} */ share) => 38 + 50 * share;
  const lines = race.flatMap(([from, to], i) => [
    path(`M${xOf(from)} ${16 + i * 16}H${xOf(to)}`, i ? "lane" : "lane first"), path(`M${xOf(from)} ${12 + i * 16}v8`, "line"),
    svg("circle", { cx: xOf(to), cy: 16 + i * 16, r: i ? 2.6 : 4, class: i ? "dot" : "full" })]);
  const pips = [[12, 17], [24, 17], [18, 24], [12, 31], [24, 31]];
  return [box(32, 3, 62, 42, "part"), ...lines, box(6, 12, 24, 24, "part"),
    ...pips.map(([cx, cy]) => svg("circle", { cx, cy, r: 1.9, class: "dot" }))];
}

/** @param {Shown} shown @returns {SVGElement[]} a card with the token; a long one is cut on it, and whole beside it */
function token({ token: name }) {
  const text = visible(name ?? "");
  return [box(10, MIDDLE - 14, 76, 28, name === undefined ? "part" : "part chosen"), name === undefined ? path("M40 24h16", "line")
    : svg("text", { x: WIDE / 2, y: MIDDLE + 4, "text-anchor": "middle" }, text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text)];
}
