/**
 * The life of a cell of a canvas: what each pass that looked at it saw, and what became of it.
 *
 * Makes elements of figures. Refuses to know the store.
 */

import { el } from "./dom.js";
import { LN2, ordinal, percent, probability, visible } from "../figures/numbers.js";
/** @import { Canvas, Fate, Moment } from "../figures/canvas.js" */
/** @import { PassCell, Trace } from "../state/trace.js" */

/** @type {Record<Fate, string>} */
const BECAME = { kept: "stays", fresh: "revealed", edited: "another token", again: "masked again", masked: "waits", later: "" };

/**
 * @param {Trace} trace @param {Canvas} canvas @param {number} cell @param {number} at the pass that is shown
 * @param {(pass: number) => void} go @param {((token: number) => void) | null} fork another token there, in that pass
 * @returns {HTMLElement[]}
 */
export function cellStory(trace, canvas, cell, at, go, fork) {
  const life = canvas.life(cell);
  const sentence = sentenceOf(trace, canvas, cell, life);
  const seen = canvas.looks[at]?.get(cell);
  return [
    el("h3", {}, `Cell ${cell}, position ${cell + canvas.first}`), el("p", {}, sentence),
    ...(seen && fork ? [others(trace, seen, at, fork)] : []),
    ...(life.length ? [table(trace, life, at, go)] : []),
  ];
}

/** @param {Trace} trace @param {Canvas} canvas @param {number} cell @param {Moment[]} life @returns {string} */
function sentenceOf(trace, canvas, cell, life) {
  if (!life.length) return "No pass has looked at it: the block that it is in is not begun.";
  const since = canvas.since[cell] ?? -1;
  if (since < 0) return "It is masked.";
  const token = canvas.stands.at(-1)?.[cell] ?? -1;
  const came = life.find(({ pass }) => pass.index === since);
  const place = came?.place ? `, ${ordinal(came.place)} of ${came.of} in the order` : "";
  const next = canvas.next(since);
  const missed = next ? ` Next in line was cell ${next.position - canvas.first}.` : "";
  return `${visible(trace.nameOf(token))} stands here since pass ${since + 1}${place}, `
    + `with ${percent(probability(came?.seen?.logprob ?? 0))}.${missed}`;
}

/** @param {Trace} trace @param {PassCell} seen @param {number} at @param {(token: number) => void} fork */
function others(trace, seen, at, fork) {
  const tokens = [...new Set([seen.token_id, ...seen.likely])].filter((token) => token !== seen.now);
  return el("p", { class: "row" }, el("span", { class: "faint" }, `Put there in pass ${at + 1}, and go on with the same luck:`),
    ...tokens.map((token) => el("button", { type: "button", class: "token", onclick: () => fork(token) }, visible(trace.nameOf(token)))));
}

/** @param {Trace} trace @param {Moment[]} life @param {number} at @param {(pass: number) => void} go */
function table(trace, life, at, go) {
  const heads = ["pass", "likeliest", "p", "", "entropy", "drawn", "figure", "in the order", "it"];
  const rows = life.map(({ pass, seen, fate, place, of }) => {
    const figures = seen ? figuresOf(trace, seen) : Array.from({ length: 6 }, () => el("td"));
    return el("tr", { class: pass.index === at ? "chosen" : null },
      el("td", {}, el("button", { type: "button", class: "plain", "aria-label": `Show pass ${pass.index + 1}`,
        onclick: () => go(pass.index) }, String(pass.index + 1))),
      ...figures, el("td", {}, place ? `${ordinal(place)} of ${of}` : ""), el("td", {}, BECAME[fate]));
  });
  return el("div", { class: "scrolling life", tabindex: 0, role: "region", "aria-label": "The passes that looked at this cell" },
    el("table", { class: "figures" },
      el("thead", {}, el("tr", {}, ...heads.map((head) => head === "" ? el("td", {}) : el("th", { scope: "col" }, head)))),
      el("tbody", {}, ...rows)));
}

/** @param {Trace} trace @param {PassCell} seen @returns {HTMLElement[]} */
function figuresOf(trace, seen) {
  const share = probability(seen.likely_logprob[0] ?? -Infinity);
  return [
    el("td", {}, el("span", { class: "token" }, visible(trace.nameOf(seen.likely[0] ?? -1)))),
    el("td", { class: "figure" }, percent(share)),
    el("td", {}, el("div", { class: "bar" }, el("i", { style: { width: `${100 * share}%` } }))),
    el("td", { class: "figure" }, `${(seen.entropy / LN2).toFixed(2)} bits`),
    el("td", {}, el("span", { class: "token" }, visible(trace.nameOf(seen.token_id))), ` ${percent(probability(seen.logprob))}`),
    el("td", { class: "figure" }, seen.figure.toFixed(3).replace("-", "−")),
  ];
}
