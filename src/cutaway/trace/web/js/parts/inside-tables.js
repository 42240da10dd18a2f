/**
 * The tables of the panel Inside: the figures behind its pictures.
 */

import { MOST_ROWS, sortByAttribution, nameIn } from "../figures/inside.js";
import { scoreText } from "../figures/attention.js";
import { percent, thousands, withSign } from "../figures/numbers.js";
import { el, figure, scrolling } from "./dom.js";
/** @import { Attended, StateLayer } from "../figures/attention.js" */
/** @import { HeadFigures, LensRow, Component, PositionFigures } from "../figures/inside.js" */
/** @import { StepInside } from "../state/step-inside.js" */

/** @typedef {(position: number) => string} TokenAt */

/**
 * A table's columns: heading, width in rem, so that no figure moves another column, and what it means.
 * @typedef {[heading: string, width: number, gloss?: string][]} Columns
 */

const WEIGHT = "attention weight: how much of what is read comes from this position; all add up to 100%";
export const ATTRIBUTION = "how far it moved the logit of the token above that of the other, in logits";
const TEXTS = ["token", "attends to", "head", "layer", "likeliest", "drawn", "component", "part", "without", "text"]; // all others are figures
/** @type {Columns} */
export const PLACES = [["no.", 2], ["position", 4.4, "of the token in the text, including the prompt"], ["token", 6.4],
  ["weight", 5.2, WEIGHT], ["attribution", 5.6, ATTRIBUTION]];
/** @type {Columns} */
export const SCORES = [["no.", 2], ["position", 4.4, "of the token in the text, including the prompt"], ["token", 6.4],
  ["score", 4.4, "scale · q·k, of which softmax makes the weight"], ["weight", 5.2, WEIGHT]];
/** @type {Columns} */
export const STATES = [["layer", 3.8], ["half from", 5.4, "how many of the last tokens have half of what the layer's heads read from their states"],
  ["most from", 5.4, "the position of which they read most"], ["token", 6.4], ["share", 4]];
/** @type {Columns} */
export const HEADS = [["head", 4.6, "L: layer, H: head"], ["attribution", 5, ATTRIBUTION],
  ["attends to", 6.5, "the position with the largest attention weight, and its token"], ["weight", 3.7, WEIGHT],
  ["position 0", 4.7, "attention weight of the first token, where a head rests that needs nothing"],
  ["previous", 4.3, "attention weight of the token before"],
  ["induction", 4.4, "attention weight of the tokens that followed earlier places of the last token"],
  ["entropy", 3.9, "of the attention weights: 0 all on one token, 1 the same on each"]];
/** @type {Columns} */
export const LENS = [["layer", 3.8], ["likeliest", 5.2, "the output head's likeliest token after this layer"],
  ["p", 3.5, "its probability"], ["rank", 3.7, "of the token that came; 1 is the likeliest"],
  ["drawn", 5.2, "what the sampling chain with the same luck would draw from these logits"]];
/** @type {Columns} */
export const COMPONENTS = [["component", 17, "attn: attention, mlp: feed-forward layer"], ["attribution", 5.6, ATTRIBUTION]];
/** @type {Columns} */
export const EXPERTS = [["expert", 4], ["share", 4, "the router's weight for this expert"], ["attribution", 5.6, ATTRIBUTION]];

/**
 * @param {string} caption @param {Columns} columns @param {HTMLElement[]} rows
 * @returns {HTMLElement} in a box of its own that scrolls
 */
export function table(caption, columns, rows) {
  const heads = columns.map(([head, width, gloss]) =>
    el("th", { class: TEXTS.includes(head) ? null : "figure", scope: "col", style: { width: `${width}rem` }, title: gloss }, head));
  const width = columns.reduce((sum, [, columnWidth]) => sum + columnWidth, 0);
  return scrolling(caption, el("table", { class: "figures", style: { width: `${width}rem` } },
    el("caption", { class: "visually-hidden" }, caption), el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows)));
}

/** @param {string} text with its invisible characters made visible @returns {HTMLElement} */
const token = (text) => el("span", { class: "token" }, text);

/** @param {PositionFigures[]} places the largest first @param {TokenAt} at @returns {HTMLElement[]} the first of them */
export const placeRows = (places, at) => places.slice(0, MOST_ROWS).map(({ position, weight, attribution }, i) => el("tr", {},
  figure(i + 1, "faint"), figure(thousands(position)),
  el("th", { scope: "row" }, token(at(position))), figure(percent(weight)), figure(withSign(attribution, 3))));

/** @param {Attended[]} rows @param {TokenAt} at @returns {HTMLElement[]} */
export const scoreRows = (rows, at) => rows.map(({ position, score, weight }, i) => el("tr", {}, figure(i + 1, "faint"), figure(thousands(position)),
  el("th", { scope: "row" }, token(at(position))), figure(score === null ? "–" : scoreText(score, 3)), figure(percent(weight))));

/** @param {StateLayer[]} layers @param {TokenAt} at @returns {HTMLElement[]} */
export const stateRows = (layers, at) => layers.map(({ layer, keeps, half }) => {
  const peak = keeps.indexOf(Math.max(...keeps));
  return el("tr", {}, el("th", { scope: "row", class: "mono" }, `L${layer}`), figure(`last ${thousands(half)}`), figure(thousands(peak)),
    el("td", {}, token(at(peak))), figure(percent(keeps[peak])));
});

/** @param {PositionFigures[]} places the largest first @returns {HTMLElement[]} the sums of those that have no row */
export function otherPlaces(places) {
  const rest = places.slice(MOST_ROWS);
  if (!rest.length) return [];
  const sum = (/** @type {"weight" | "attribution"} */ name) => rest.reduce((all, place) => all + place[name], 0);
  return [el("tr", {}, el("td"), el("td"), el("th", { scope: "row" }, `the other ${thousands(rest.length)}`),
    figure(percent(Math.max(sum("weight"), 0))), figure(withSign(sum("attribution"), 3)))];
}

/**
 * @param {HeadFigures[]} heads @param {TokenAt} at @param {[number, number] | null} chosenHead
 * @returns {HTMLElement[]} a button in each has its layer and number as data
 */
export const headRows = (heads, at, chosenHead) => heads.map((h) => el("tr",
  { class: chosenHead?.[0] === h.layer && chosenHead[1] === h.head ? "chosen" : null },
  el("th", { scope: "row" }, el("button", { type: "button", class: "plain", "data-head": `${h.layer} ${h.head}` },
    `L${h.layer}.H${h.head}`)),
  figure(withSign(h.attribution, 3)), el("td", {}, `${thousands(h.most)} `, token(at(h.most))), figure(percent(h.weight)),
  figure(percent(h.sink)), figure(percent(h.previous)), figure(percent(h.induction)), figure(h.entropy.toFixed(2))));

/** @param {Component[]} all rounding is the last @param {number} total @returns {HTMLElement[]} the largest, the others' sum, rounding, the total */
export function componentRows(all, total) {
  const sorted = sortByAttribution(all.slice(0, -1));
  const rest = sorted.slice(MOST_ROWS);
  const row = (/** @type {string} */ name, /** @type {number} */ value) =>
    el("tr", {}, el("th", { scope: "row" }, name), figure(withSign(value, 3)));
  return [...sorted.slice(0, MOST_ROWS).map(({ name, attribution }) => row(name, attribution)),
    ...(rest.length ? [row(`the other ${rest.length}`, rest.reduce((sum, { attribution }) => sum + attribution, 0))] : []),
    row("rounding to 8 bits before the head", all.at(-1)?.attribution ?? 0), row("total", total)];
}

/** @param {StepInside} inside @param {LensRow[]} rows @returns {HTMLElement[]} a row for each layer */
export function lensTable(inside, rows) {
  return rows.map(({ layer, id, probability, rank, drawnId }) => el("tr", { class: rank === 1 ? "chosen" : null },
    el("th", { scope: "row", class: "mono" }, layer < 0 ? "before" : `L${layer}`),
    el("td", {}, token(nameIn(inside, id))),
    figure(percent(probability)), figure(thousands(rank)),
    el("td", {}, drawnId === null ? "–" : drawnId < 0 ? "nothing" : token(nameIn(inside, drawnId)))));
}
