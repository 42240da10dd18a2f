/**
 * Two aligned charts of bits by distance from a mistake: the original's tokens, and the model's own continuation.
 *
 * Knows lines, areas and the scale. Does not know where the figures come from.
 */

import { svg } from "../parts/dom.js";
/** @import { Point, Rejoined } from "./snowball-figures.js" */

export const WIDE = 720;
const HIGH = 96; // of one chart
const GAP = 34; // above each chart, for its title
export const LEFT = 44;
export const RIGHT = WIDE - 8;
const MOST = 12; // bits at which the scale ends

/** @typedef {(point: Point) => number | null} Figure */

/**
 * @param {Point[]} shown @param {Rejoined | null} met
 * @returns {{drawing: SVGSVGElement, place: (distance: number) => number}}
 */
export function chart(shown, met) {
  const wide = (RIGHT - LEFT) / Math.max(shown.length, 1);
  const place = (/** @type {number} */ distance) => LEFT + (distance - 0.5) * wide;
  const drawing = svg("svg", { class: "curves", viewBox: `0 0 ${WIDE} ${2 * (HIGH + GAP) + 18}`, role: "img",
    "aria-label": "Bits by distance from the mistake; the table below has the same figures" },
    panel(shown, place, 0, "The original’s tokens: dashed without, solid after the mistake", (p) => p.again, null),
    panel(shown, place, 1, "Own continuation: dashed the original, solid the model left to itself", (p) => p.free, met),
    ...axis(shown.length, place),
    svg("line", { class: "cursor", y1: GAP, y2: 2 * (HIGH + GAP) }));
  return { drawing, place };
}

/**
 * @param {Point[]} shown @param {(d: number) => number} place @param {number} row @param {string} title
 * @param {Figure} figure @param {Rejoined | null} met @returns {SVGElement}
 */
function panel(shown, place, row, title, figure, met) {
  const foot = (row + 1) * (HIGH + GAP);
  const high = (/** @type {number} */ value) => foot - (Math.min(value, MOST) / MOST) * HIGH;
  const plain = (/** @type {Point} */ p) => p.plain;
  return svg("g", {},
    svg("text", { class: "title", x: LEFT, y: foot - HIGH - 8 }, title),
    ...[0, 4, 8, 12].flatMap((value) => [
      svg("path", { class: value ? "grid" : "foot", d: `M${LEFT} ${high(value)}H${RIGHT}` }),
      svg("text", { class: "scale", x: LEFT - 5, y: high(value) + 3 }, value === MOST ? `${value} bits` : value)]),
    row === 0 && svg("path", { class: "cost", d: area(shown, place, high, plain, figure) }),
    svg("path", { class: "plain", d: line(shown, place, high, plain) }),
    svg("path", { class: "after", d: line(shown, place, high, figure) }),
    ...(row ? shown.filter((p) => p.same).map((p) =>
      svg("circle", { class: "same", cx: place(p.distance), cy: foot + 4, r: 1.8 })) : []),
    met && met.distance <= shown.length && svg("path", { class: "met",
      d: `M${place(met.distance)} ${foot - HIGH}V${foot}` }));
}

/**
 * @param {Point[]} shown @param {(d: number) => number} place @param {(v: number) => number} high
 * @param {Figure} figure @returns {string} one stroke for each stretch without a gap
 */
function line(shown, place, high, figure) {
  let pen = "M";
  let path = "";
  for (const point of shown) {
    const value = figure(point);
    if (value === null) pen = "M";
    else {
      path += `${pen}${place(point.distance).toFixed(1)} ${high(value).toFixed(1)}`;
      pen = "L";
    }
  }
  return path;
}

/**
 * @param {Point[]} shown @param {(d: number) => number} place @param {(v: number) => number} high
 * @param {Figure} one @param {Figure} other @returns {string} what lies between two lines
 */
function area(shown, place, high, one, other) {
  const both = shown.filter((p) => one(p) !== null && other(p) !== null);
  if (!both.length) return "";
  const ends = (/** @type {Point[]} */ row, /** @type {Figure} */ figure) =>
    row.map((p) => `${place(p.distance).toFixed(1)} ${high(figure(p) ?? 0).toFixed(1)}`);
  return `M${[...ends(both, one), ...ends(both.toReversed(), other)].join("L")}Z`;
}

/** @param {number} count @param {(d: number) => number} place @returns {SVGElement[]} */
function axis(count, place) {
  const every = count > 64 ? 16 : count > 24 ? 8 : 4;
  const marks = [1, ...Array.from({ length: Math.floor(count / every) }, (_, i) => (i + 1) * every)];
  return marks.filter((d) => d <= count).map((d) =>
    svg("text", { class: "tick", x: place(d), y: 2 * (HIGH + GAP) + 15 }, d));
}
