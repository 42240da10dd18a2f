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
const TOP_BITS = 12; // bits at which the scale ends

/** @typedef {(point: Point) => number | null} Figure */

/**
 * @param {Point[]} points @param {Rejoined | null} meeting
 * @returns {{drawing: SVGSVGElement, place: (distance: number) => number}}
 */
export function chart(points, meeting) {
  const wide = (RIGHT - LEFT) / Math.max(points.length, 1);
  const place = (/** @type {number} */ distance) => LEFT + (distance - 0.5) * wide;
  const drawing = svg("svg", { class: "curves", viewBox: `0 0 ${WIDE} ${2 * (HIGH + GAP) + 18}`, role: "img",
    "aria-label": "Bits by distance from the mistake; the table below has the same figures" },
    panel(points, place, 0, "The original’s tokens: dashed without, solid after the mistake", (p) => p.again, null),
    panel(points, place, 1, "Own continuation: dashed the original, solid the model left to itself", (p) => p.free, meeting),
    ...axis(points.length, place),
    svg("line", { class: "cursor", y1: GAP, y2: 2 * (HIGH + GAP) }));
  return { drawing, place };
}

/**
 * @param {Point[]} points @param {(d: number) => number} place @param {number} row @param {string} title
 * @param {Figure} figure @param {Rejoined | null} meeting @returns {SVGElement}
 */
function panel(points, place, row, title, figure, meeting) {
  const foot = (row + 1) * (HIGH + GAP);
  const high = (/** @type {number} */ value) => foot - (Math.min(value, TOP_BITS) / TOP_BITS) * HIGH;
  const plain = (/** @type {Point} */ p) => p.plain;
  return svg("g", {},
    svg("text", { class: "title", x: LEFT, y: foot - HIGH - 8 }, title),
    ...[0, 4, 8, 12].flatMap((value) => [
      svg("path", { class: value ? "grid" : "foot", d: `M${LEFT} ${high(value)}H${RIGHT}` }),
      svg("text", { class: "scale", x: LEFT - 5, y: high(value) + 3 }, value === TOP_BITS ? `${value} bits` : value)]),
    row === 0 && svg("path", { class: "cost", d: area(points, place, high, plain, figure) }),
    svg("path", { class: "plain", d: line(points, place, high, plain) }),
    svg("path", { class: "after", d: line(points, place, high, figure) }),
    ...(row ? points.filter((p) => p.same).map((p) =>
      svg("circle", { class: "same", cx: place(p.distance), cy: foot + 4, r: 1.8 })) : []),
    meeting && meeting.distance <= points.length && svg("path", { class: "met",
      d: `M${place(meeting.distance)} ${foot - HIGH}V${foot}` }));
}

/**
 * @param {Point[]} points @param {(d: number) => number} place @param {(v: number) => number} high
 * @param {Figure} figure @returns {string} one stroke for each stretch without a gap
 */
function line(points, place, high, figure) {
  let pen = "M";
  let path = "";
  for (const point of points) {
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
 * @param {Point[]} points @param {(d: number) => number} place @param {(v: number) => number} high
 * @param {Figure} first @param {Figure} second @returns {string} what lies between two lines
 */
function area(points, place, high, first, second) {
  const complete = points.filter((p) => first(p) !== null && second(p) !== null);
  if (!complete.length) return "";
  const ends = (/** @type {Point[]} */ row, /** @type {Figure} */ figure) =>
    row.map((p) => `${place(p.distance).toFixed(1)} ${high(figure(p) ?? 0).toFixed(1)}`);
  return `M${[...ends(complete, first), ...ends(complete.toReversed(), second)].join("L")}Z`;
}

/** @param {number} count @param {(d: number) => number} place @returns {SVGElement[]} */
function axis(count, place) {
  const interval = count > 64 ? 16 : count > 24 ? 8 : 4;
  const marks = [1, ...Array.from({ length: Math.floor(count / interval) }, (_, i) => (i + 1) * interval)];
  return marks.filter((d) => d <= count).map((d) =>
    svg("text", { class: "tick", x: place(d), y: 2 * (HIGH + GAP) + 15 }, d));
}
