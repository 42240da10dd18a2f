/**
 * The sampling chain of one step as a row of cards: how many tokens each stage left, which it removed, and the
 * probability of the selected token after it.
 */

import { el, token } from "./dom.js";
import { hue, percent, signed, thousands, visible } from "../figures/numbers.js";
import { stageProbabilities } from "../figures/step-view.js";
/** @import { Trace, Step, Candidate } from "../state/trace.js" */
/** @import { StepView, StageView, CandidateView } from "../figures/step-view.js" */

/**
 * @param {Trace} trace @param {StepView} view
 * @returns {HTMLElement[]} a card for the logits, for each stage, for the luck and for the chosen token
 */
export function cards(trace, view) {
  const beginning = card("z", "logits", null,
    el("p", {}, `${thousands(trace.head.vocab_size)} tokens`), way());
  const stages = view.stages.map((stage) => card(stage.letter, stage.label, hue(stage.letter),
    el("p", {}, `${thousands(stage.survivors)} left`), ...removed(stage), way()));
  return [beginning, ...stages, luck(view), pick(view)];
}

/** @returns {HTMLElement} the place of the selected token's probability */
const way = () => el("p", { class: "way faint" });

/**
 * @param {HTMLElement[]} shown what `cards` made
 * @param {Trace} trace @param {Step} step @param {Candidate} candidate the token whose probabilities are shown
 */
export function showProbabilities(shown, trace, step, candidate) {
  const first = Math.exp(Math.min(candidate.logit - step.log_sum_exp, 0));
  const path = [first, ...stageProbabilities(trace, step, candidate)];
  const name = visible(trace.nameOf(candidate.id));
  path.forEach((share, i) => {
    const place = shown[i]?.querySelector(".way");
    const gone = share === null && path[i - 1] !== null;
    const text = share === undefined ? "?" : gone ? "removed" : percent(share);
    place?.replaceChildren(el("span", { class: "token" }, name), ` ${text}`);
    place?.classList.toggle("gone", share === null);
  });
}

/**
 * @param {string} letter @param {string} label @param {string | null} colour @param {Node[]} children
 * @returns {HTMLElement}
 */
function card(letter, label, colour, ...children) {
  const mark = el("span", { class: "letter", "aria-hidden": "true" }, letter);
  return el("li", { class: "stage", style: colour ? { "--hue": colour } : {} },
    el("p", { class: "name" }, mark, label), ...children);
}

/** @param {StageView} stage @returns {HTMLElement[]} how much probability it removed, and the likeliest removed tokens */
function removed(stage) {
  if (!stage.topRemoved.length) return [];
  const names = stage.topRemoved.flatMap((name) => [token(name), " "]);
  return [
    el("p", {}, `−${percent(stage.removedMass)} probability`),
    el("div", { class: "mass", "aria-hidden": "true" },
      el("i", { style: { width: `${100 * (1 - stage.removedMass)}%` } })),
    el("p", { class: "victims faint", title: "the likeliest of the removed tokens" }, ...names),
  ];
}

/** @param {StepView} view @returns {HTMLElement} the highest score, and the second */
function luck(view) {
  const scored = view.candidates.filter((c) => c.score !== null && c.luck !== null);
  scored.sort((a, b) => (b.score ?? 0) - (a.score ?? 0));
  const [first, second] = scored;
  if (!first) return card("+", "luck", null, el("p", {}, "none: the likeliest token is taken"));
  const likeliest = scored.reduce((a, b) => ((b.final ?? 0) > (a.final ?? 0) ? b : a));
  const words = first === likeliest ? ["the likeliest won"] : ["overtook the likeliest, ", token(likeliest.token)];
  return card("+", "luck", null, el("p", {}, ...words), sum(first),
    ...(second ? [next(second)] : []));
}

/** @param {CandidateView} c @returns {HTMLElement} log-probability + luck = score */
const sum = (c) => el("p", {}, token(c.token),
  el("span", { class: "mono" },
    ` ${signed((c.score ?? 0) - (c.luck ?? 0))} ${signed(c.luck ?? 0)} = ${signed(c.score ?? 0)}`));

/** @param {CandidateView} c @returns {HTMLElement} the second-highest score */
const next = (c) =>
  el("p", { class: "faint" }, "ahead of ", token(c.token), el("span", { class: "mono" }, ` ${signed(c.score ?? 0)}`));

/** @param {StepView} view @returns {HTMLElement} */
function pick(view) {
  const drawn = view.candidates.find((c) => c.drawn);
  const children = [el("p", {}, el("span", { class: "token picked" }, visible(view.token)))];
  if (view.source === "forced") {
    const own = drawn?.chosen ? "the same" : drawn ? token(drawn.token) : "another token";
    children.push(el("p", { class: "faint" }, "forced; the draw was ", own));
  }
  return card("●", "token", null, ...children);
}
