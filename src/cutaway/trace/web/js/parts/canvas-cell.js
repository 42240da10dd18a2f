/**
 * The history of a cell of a canvas: what each pass computed of it, and its state after the pass.
 *
 * Makes elements of figures. Does not know the store.
 */

import { button, el, headRow, scrolling, token } from "./dom.js";
import { LN2, countFrom1, ordinal, percent, probability, visible } from "../figures/numbers.js";
/** @import { Canvas, CellState, Moment } from "../figures/canvas.js" */
/** @import { PassCell, Trace } from "../state/trace.js" */

/** @type {Record<CellState, string>} */
const BECAME = { kept: "kept", fresh: "revealed", edited: "replaced", again: "masked again", masked: "stays masked", later: "" };
/** @type {Record<CellState, string>} */
const NOISY = { ...BECAME, fresh: "kept", again: "noise again", masked: "stays noise" };

/**
 * @param {Trace} trace @param {Canvas} canvas @param {number} cell @param {number} at the pass that is shown
 * @param {(pass: number) => void} go @param {((token: number) => void) | null} fork put another token there in that pass; null: impossible
 * @returns {HTMLElement[]}
 */
export function cellStory(trace, canvas, cell, at, go, fork) {
  const history = canvas.history(cell);
  const sentence = sentenceOf(trace, canvas, cell, history);
  const seen = canvas.seen[at]?.get(cell);
  return [
    el("h3", {}, `Cell ${countFrom1(cell)}, position ${cell + canvas.first}`), el("p", {}, sentence),
    ...(seen && fork ? [otherTokens(trace, seen, at, fork)] : []),
    ...(history.length ? [table(trace, canvas, history, at, go)] : []),
  ];
}

/** @param {Trace} trace @param {Canvas} canvas @param {number} cell @param {Moment[]} history @returns {string} */
function sentenceOf(trace, canvas, cell, history) {
  if (!history.length) return "No pass has computed it yet, since its block has not begun.";
  const since = canvas.since[cell] ?? -1;
  if (since < 0) return canvas.isNoise ? "It is noise." : "It is masked.";
  const token = canvas.tokens.at(-1)?.[cell] ?? -1;
  const came = history.find(({ pass }) => pass.index === since);
  const place = came?.place ? `, ${ordinal(came.place)} of ${came.of} in the order` : "";
  const next = canvas.next(since);
  const missed = next ? ` The next would have been cell ${countFrom1(next.position - canvas.first)}.` : "";
  const event = canvas.isNoise ? "was kept from pass" : "was revealed in pass";
  return `${visible(trace.nameOf(token))} ${event} ${countFrom1(since)}${canvas.isNoise ? " on" : ""}${place}, `
    + `with ${percent(probability(came?.seen?.logprob ?? 0))}.${missed}`;
}

/** @param {Trace} trace @param {PassCell} seen @param {number} at @param {(token: number) => void} fork */
function otherTokens(trace, seen, at, fork) {
  const tokens = [...new Set([seen.token_id, ...seen.likely])].filter((token) => token !== seen.now);
  return el("p", { class: "row" }, el("span", { class: "faint" }, `Put another token there in pass ${countFrom1(at)}, and continue with the same luck:`),
    ...tokens.map((token) => button(visible(trace.nameOf(token)), () => fork(token), { class: "token" })));
}

/** @param {Trace} trace @param {Canvas} canvas @param {Moment[]} history @param {number} at @param {(pass: number) => void} go */
function table(trace, canvas, history, at, go) {
  const heads = ["pass", ...(canvas.isNoise ? ["read"] : []), "likeliest", "p", "", "entropy", "drawn", "ranked by", "rank", "the cell"];
  const rows = history.map(({ pass, seen, state, place, of }) => {
    const figures = seen ? figuresOf(trace, seen) : Array.from({ length: 6 }, () => el("td"));
    return el("tr", { class: pass.index === at ? "chosen" : null },
      el("td", {}, button(countFrom1(pass.index), () => go(pass.index), { class: "plain", "aria-label": `Show pass ${countFrom1(pass.index)}` })),
      ...(canvas.isNoise ? [el("td", {}, token(trace.nameOf(seen?.read ?? -1)))] : []),
      ...figures, el("td", {}, place ? `${ordinal(place)} of ${of}` : ""), el("td", {}, canvas.isNoise ? NOISY[state] : BECAME[state]));
  });
  const box = scrolling("The passes that computed this cell",
    el("table", { class: "figures" }, headRow(...heads), el("tbody", {}, ...rows)));
  box.classList.add("life");
  return box;
}

/** @param {Trace} trace @param {PassCell} seen @returns {HTMLElement[]} */
function figuresOf(trace, seen) {
  const share = probability(seen.likely_logprob[0] ?? -Infinity);
  return [
    el("td", {}, token(trace.nameOf(seen.likely[0] ?? -1))),
    el("td", { class: "figure" }, percent(share)),
    el("td", {}, el("div", { class: "bar" }, el("i", { style: { width: `${100 * share}%` } }))),
    el("td", { class: "figure" }, `${(seen.entropy / LN2).toFixed(2)} bits`),
    el("td", {}, token(trace.nameOf(seen.token_id)), ` ${percent(probability(seen.logprob))}`),
    el("td", { class: "figure" }, seen.figure.toFixed(3).replace("-", "−")),
  ];
}
