/**
 * The sampling chain of one step: the probability of the selected token after each stage, and the likeliest tokens that
 * a stage removed. How many there were is in the river.
 */

import { el, token } from "./dom.js";
import { finalProbability, hue, percent, probability, stageLetter, visible } from "../figures/numbers.js";
import { stageProbabilities } from "../figures/step-view.js";
/** @import { Trace, Step, Candidate } from "../state/trace.js" */
/** @import { StepView } from "../figures/step-view.js" */

/** @param {StepView} view @returns {HTMLElement[]} a list item for the model, for each stage, and for temperature 0, which is none */
export const items = ({ stages, candidates }) => [item("z", "model", null),
  ...[...stages, ...(candidates.some(({ luck }) => luck === null) ? [GREEDY] : [])].map(({ letter, label }) => item(letter, label, hue(letter)))];

const GREEDY = { letter: stageLetter({ stage: "temperature" }), label: "temperature 0" };

/** @param {string} letter @param {string} label @param {string | null} colour @returns {HTMLElement} */
const item = (letter, label, colour) => el("li", { class: "stage", style: colour ? { "--hue": colour } : {} },
  el("span", { class: "letter", "aria-hidden": "true" }, letter), ` ${label} `, el("span", { class: "way mono" }));

/**
 * @param {HTMLElement[]} elements what `items` made
 * @param {Trace} trace @param {Step} step @param {Candidate} candidate the token whose probabilities are shown
 * @returns {string} its name
 */
export function showProbabilities(elements, trace, step, candidate) {
  const path = [probability(candidate.logit - step.log_sum_exp), ...stageProbabilities(trace, step, candidate)];
  if (candidate.luck === null) path.push(finalProbability(step, candidate));
  path.forEach((share, i) => {
    const isRemoved = share === null && path[i - 1] !== null;
    elements[i]?.querySelector(".way")?.replaceChildren(share === undefined ? "?" : isRemoved ? "removed" : percent(share));
    elements[i]?.classList.toggle("gone", share === null);
  });
  return visible(trace.nameOf(candidate.id));
}

/** @param {StepView} view @returns {HTMLElement[]} the likeliest tokens that each stage removed */
export const removals = ({ stages }) => stages.flatMap(({ label, topRemoved }) => (topRemoved.length
  ? [el("p", { class: "removal faint" }, `${label} cut off, the likeliest first: `, ...topRemoved.flatMap((name) => [token(name), " "]))] : []));
