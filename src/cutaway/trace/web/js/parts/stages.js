/**
 * The sampling chain of one step: the probability of the selected token after each stage, and what a stage removed. How
 * many tokens each one left is in the drawing of the machine.
 */

import { el, token } from "./dom.js";
import { hue, percent, probability, thousands, visible } from "../figures/numbers.js";
import { stageProbabilities } from "../figures/step-view.js";
/** @import { Trace, Step, Candidate } from "../state/trace.js" */
/** @import { StepView } from "../figures/step-view.js" */

/** @param {StepView} view @returns {HTMLElement[]} a list item for the model, and for each stage */
export const items = ({ stages }) => [item("z", "model", null),
  ...stages.map(({ letter, label }) => item(letter, label, hue(letter)))];

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
  path.forEach((share, i) => {
    const isRemoved = share === null && path[i - 1] !== null;
    elements[i]?.querySelector(".way")?.replaceChildren(share === undefined ? "?" : isRemoved ? "removed" : percent(share));
    elements[i]?.classList.toggle("gone", share === null);
  });
  return visible(trace.nameOf(candidate.id));
}

/** @param {Trace} trace @param {StepView} view @returns {HTMLElement[]} a sentence for each stage that removed tokens */
export function removals({ head }, { stages }) {
  return stages.flatMap(({ label, survivors, removedMass, topRemoved }, i) => {
    const count = (stages[i - 1]?.survivors ?? head.vocab_size) - survivors;
    if (count <= 0) return [];
    return [el("p", { class: "removal faint" }, `${label} removed ${thousands(count)} ${count === 1 ? "token" : "tokens"} with ${percent(removedMass)}`,
      topRemoved.length ? " of the probability, the likeliest first: " : " of the probability", ...topRemoved.flatMap((name) => [token(name), " "]))];
  });
}
