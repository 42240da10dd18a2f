/**
 * The tables beside the pictures of the inside: each says in digits what they say in colours.
 */

import { MOST, nameIn } from "../figures/inside.js";
import { percent, signed, thousands } from "../figures/numbers.js";
import { el } from "./dom.js";
/** @import { Head, LensRow, Part, Place } from "../figures/inside.js" */
/** @import { Look } from "../state/look.js" */

/** @typedef {(position: number) => string} TokenAt */

/**
 * A table's columns: heading and width in rem, so that no figure moves another column; 0 is what is left.
 * @typedef {[heading: string, width: number][]} Columns
 */

const BAR = ""; // the heading of what has none
const WORDS = ["token", "looks most at", "head", "layer", "likeliest", "luck draws", "part"]; // all else are figures
/** @type {Columns} */
export const PLACES = [["no.", 2], ["position", 4.4], ["token", 8], ["weight", 5.2], ["attribution", 5.6]];
/** @type {Columns} */
export const HEADS = [["head", 5], ["attribution", 5.6], ["looks most at", 8], ["weight", 4], ["position 0", 5.2],
  ["previous", 4.4], ["induction", 4.4], ["spread", 3.4]];
/** @type {Columns} */
export const LENS = [["layer", 3.8], ["likeliest", 5.7], [BAR, 0], ["p", 4.2], [BAR, 0], ["rank", 4.4], ["luck draws", 5.7]];
/** @type {Columns} */
export const PARTS = [["part", 17], ["attribution", 5.6]];
/** @type {Columns} */
export const EXPERTS = [["expert", 4], ["share", 4], ["attribution", 5.6]];

/**
 * @param {string} caption @param {Columns} columns @param {HTMLElement[]} rows
 * @returns {HTMLElement} in a box that scrolls by itself
 */
export function table(caption, columns, rows) {
  const heads = columns.map(([head, width]) => el(head === BAR ? "td" : "th",
    { class: head === BAR ? "wide" : WORDS.includes(head) ? null : "figure", scope: head === BAR ? null : "col", style: width ? { width: `${width}rem` } : {} }, head));
  const open = columns.some(([, width]) => width === 0);
  const width = columns.reduce((sum, [, own]) => sum + (own || 2.6), 0);
  return el("div", { class: "scrolling", tabindex: 0, role: "region", "aria-label": caption },
    el("table", { class: "figures", style: { [open ? "min-width" : "width"]: `${width}rem` } },
      el("caption", { class: "visually-hidden" }, caption),
      el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows)));
}

/** @param {string} text @returns {HTMLElement} */
const token = (text) => el("span", { class: "token" }, text);

/** @param {string | number} figure @returns {HTMLElement} */
const number = (figure) => el("td", { class: "mono figure" }, figure);

/** @param {Place[]} places most first @param {TokenAt} at @returns {HTMLElement[]} those with most */
export const placeRows = (places, at) => places.slice(0, MOST).map(({ position, weight, push }, i) => el("tr", {},
  el("td", { class: "mono figure faint" }, i + 1), number(thousands(position)),
  el("th", { scope: "row" }, token(at(position))), number(percent(weight)), number(signed(push, 3))));

/** @param {Place[]} places most first @returns {HTMLElement | null} what is not in the table */
export function otherPlaces(places) {
  if (places.length <= MOST) return null;
  const rest = places.slice(MOST);
  const sum = (/** @type {"weight" | "push"} */ name) => rest.reduce((all, place) => all + place[name], 0);
  return el("tr", {}, el("td"), el("td"), el("th", { scope: "row" }, `the other ${thousands(rest.length)}`),
    number(percent(Math.max(sum("weight"), 0))), number(signed(sum("push"), 3)));
}

/**
 * @param {Head[]} heads @param {TokenAt} at @param {[number, number] | null} chosen
 * @returns {HTMLElement[]} a button in each has its layer and number as data
 */
export const headRows = (heads, at, chosen) => heads.map((h) => el("tr",
  { class: chosen?.[0] === h.layer && chosen[1] === h.head ? "chosen" : null },
  el("th", { scope: "row" }, el("button", { type: "button", class: "plain", "data-head": `${h.layer} ${h.head}` },
    `L${h.layer}.H${h.head}`)),
  number(signed(h.push, 3)), el("td", {}, `${thousands(h.most)} `, token(at(h.most))), number(percent(h.weight)),
  number(percent(h.sink)), number(percent(h.previous)), number(percent(h.induction)), number(h.entropy.toFixed(2))));

/** @param {Part[]} parts @param {number} total @returns {HTMLElement[]} those that pushed most, the rest, the sum */
export function partRows(parts, total) {
  const [rounding, own] = [parts.at(-1), parts.slice(0, -1)];
  const sorted = [...own].sort((a, b) => Math.abs(b.push) - Math.abs(a.push));
  const rest = sorted.slice(MOST);
  const row = (/** @type {string} */ name, /** @type {number} */ push) =>
    el("tr", {}, el("th", { scope: "row" }, name), number(signed(push, 3)));
  return [...sorted.slice(0, MOST).map(({ name, push }) => row(name, push)),
    ...(rest.length ? [row(`the other ${rest.length} parts`, rest.reduce((sum, { push }) => sum + push, 0))] : []),
    row("rounding to 8 bits before the head", rounding?.push ?? 0), row("together", total)];
}

/** @param {Look} look @param {LensRow[]} rows @returns {HTMLElement[]} a row a layer */
export function lensTable(look, rows) {
  const most = Math.log(Math.max(...rows.map(({ rank }) => rank), 2));
  return rows.map(({ layer, id, probability, rank, drawn }) => el("tr", { class: rank === 1 ? "chosen" : null },
    el("th", { scope: "row", class: "mono" }, layer < 0 ? "before" : `L${layer}`),
    el("td", {}, token(nameIn(look, id))),
    el("td", { class: "wide" }, bar(probability)), number(percent(probability)),
    el("td", { class: "wide" }, bar(Math.log(rank) / most, "rank")), number(thousands(rank)),
    el("td", {}, drawn === null ? "–" : drawn < 0 ? "nothing" : token(nameIn(look, drawn)))));
}

/** @param {number} share @param {string} [kind] @returns {HTMLElement} */
const bar = (share, kind = "") => el("div", { class: `bar ${kind}`, "aria-hidden": "true" },
  el("i", { style: { width: `${(100 * share).toFixed(1)}%` } }));
