/**
 * The candidates of one step as the rows of a table: the figures of the river.
 */

import { el, figure, token } from "./dom.js";
import { gloss } from "../figures/catalogue.js";
import { hue, percent, shortPercent, thousands, withSign } from "../figures/numbers.js";
/** @import { StepView, CandidateView } from "../figures/step-view.js" */

/** @param {StepView} view @returns {HTMLElement} */
export function heading(view) {
  const cells = columns(view).map(([label, title]) =>
    el("th", { scope: "col", title }, label || el("span", { class: "visually-hidden" }, title)));
  return el("tr", {}, ...cells);
}

/** @param {StepView} view @returns {[string, string][]} each column's heading and meaning */
function columns(view) {
  const hasLuck = view.candidates.some((c) => c.luck !== null);
  return [
    ["", "chosen, drawn, or removed by a stage"],
    ["token", "␣ is a space at its beginning or end"],
    ["model → final", "probability under the model's own logits → after the sampling chain"],
    ["rank", gloss("rank")],
    ["logit", gloss("logit")],
    ...(hasDeltas(view) ? [pair("delta", gloss("delta"))] : []),
    ...(hasLuck ? [pair("luck", gloss("luck")), pair("score", gloss("score"))] : []),
    ...(hasRemoved(view) ? [pair("removed by", "the stage that removed it")] : []),
    ["", "branch"],
  ];
}

/** @param {string} a @param {string} b @returns {[string, string]} */
const pair = (a, b) => [a, b];

/** @param {StepView} view @returns {boolean} */
const hasDeltas = (view) => view.candidates.some((c) => c.delta !== 0);

/** @param {StepView} view @returns {boolean} */
const hasRemoved = (view) => view.candidates.some((c) => c.removedBy !== null);

/** @param {StepView} view @returns {HTMLElement[]} a row for each candidate */
export function rows(view) {
  const best = Math.max(...view.candidates.flatMap((c) => c.score ?? []));
  const largest = Math.max(...view.candidates.map((c) => Math.max(c.probability, c.final ?? 0)));
  const hasLuck = view.candidates.some((c) => c.luck !== null);
  return view.candidates.map((c) => el("tr", { class: c.chosen ? "chosen" : c.letter ? "gone" : null },
    el("td", { class: "mark", title: status(c) }, mark(c),
      el("span", { class: "visually-hidden" }, status(c))),
    el("th", { scope: "row" }, token(c.token)),
    el("td", { class: "wide" }, shares(c, largest)),
    figure(thousands(c.rank)),
    figure(c.logit.toFixed(2).replace("-", "−")),
    hasDeltas(view) && figure(c.delta ? withSign(c.delta) : ""),
    hasLuck && figure(c.luck === null ? "–" : withSign(c.luck)),
    hasLuck && figure(c.score === null ? "–" : withSign(c.score), c.score === best ? "best" : ""),
    hasRemoved(view) && el("td", { class: "faint" }, c.removedBy),
    el("td", { class: "action" }),
  ));
}

/** @param {CandidateView} c @returns {string} */
function status(c) {
  if (c.chosen) return "chosen";
  if (c.drawn) return "drawn, but another token was forced";
  if (c.removedBy) return `removed by ${c.removedBy}`;
  return c.luck === null ? "not the likeliest" : "survived";
}

/** @param {CandidateView} c @returns {Node | string | null} ●, ○, or the letter of the stage that removed it */
function mark(c) {
  if (c.chosen) return "●";
  if (c.drawn) return "○";
  if (!c.letter) return null;
  const style = { "--hue": hue(c.letter) };
  return el("span", { class: "letter", "aria-hidden": "true", style }, c.letter);
}

/** @param {CandidateView} c @param {number} largest the longest bar @returns {HTMLElement} */
function shares(c, largest) {
  const width = (/** @type {number} */ share) => ({ width: `${(100 * share) / largest}%` });
  return el("div", { class: "shares" },
    el("span", { class: "bars", "aria-hidden": "true" },
      el("i", { style: width(c.probability) }),
      el("i", { class: "final", style: width(c.final ?? 0) })),
    el("span", { class: "mono", title: percent(c.probability) }, shortPercent(c.probability)), el("span", { class: "faint" }, "→"),
    el("span", { class: "mono", title: percent(c.final) }, shortPercent(c.final)));
}
