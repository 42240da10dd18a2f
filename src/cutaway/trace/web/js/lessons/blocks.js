/**
 * Paragraphs and tables, such as the server sends for an exercise, with bars where a table has them.
 *
 * Knows which columns are figures. Computes none.
 */

import { el, scrolling, svg } from "../parts/dom.js";

/**
 * @typedef {{head: string[], rows: string[][], bars: number[], spans: [number, number][]}} Table
 * @typedef {string | Table} Block
 */

const WIDE = 200;
const HIGH = 14;

/** @param {Block} block @returns {HTMLElement} */
export const blockOf = (block) => (typeof block === "string" ? el("p", {}, block) : tableOf(block));

/** @param {Table} table @param {string} [label] @returns {HTMLElement} in a box of its own that scrolls */
export function tableOf(table, label = "A table of figures") {
  const heads = table.head.map((name, i) =>
    name === "" ? el("td", {}) : el("th", { scope: "col", class: kind(table, i) }, name));
  if (table.bars.length) heads.push(el("td", {}));
  const longest = Math.max(...table.bars, ...table.spans.map(([, high]) => high));
  const rows = table.rows.map((cells, row) =>
    el("tr", {}, ...cells.map((cell, i) => el("td", { class: kind(table, i) }, cell)),
      table.bars.length > 0 && el("td", {}, barOf(table, row, longest))));
  return scrolling(label, el("table", {}, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows)));
}

/** @param {Table} table @param {number} column @returns {string | null} */
function kind(table, column) {
  const name = table.head[column];
  if (name === "token") return "token";
  return name === "" || (column === 0 && name !== "#") ? null : "figure";
}

/**
 * A bar, and the range within which its end varies by chance.
 * @param {Table} table @param {number} row @param {number} longest @returns {SVGElement | null}
 */
function barOf(table, row, longest) {
  const share = table.bars[row];
  if (share === undefined) return null;
  const xOf = (/** @type {number} */ value) => (Math.max(value, 0) / longest) * (WIDE - 2);
  const span = table.spans[row];
  return svg("svg", { class: "bar", viewBox: `0 0 ${WIDE} ${HIGH}`, width: WIDE, height: HIGH, "aria-hidden": "true" },
    svg("rect", { x: 0, y: 2, width: xOf(share), height: HIGH - 4 }),
    span && svg("path", { class: "span", d: whisker(xOf(span[0]), xOf(span[1])) }));
}

/** @param {number} low @param {number} high @returns {string} |---| */
function whisker(low, high) {
  const [top, middle, foot] = [3, HIGH / 2, HIGH - 3];
  return `M${low} ${top}V${foot}M${low} ${middle}H${high}M${high} ${top}V${foot}`;
}
