/**
 * The effect of a constraint on a text, with the figures and sentences of trace/endings.py. Knows the record only,
 * and no document.
 */

import { mask, phrase } from "./catalogue.js";
import { countFrom1, visible } from "./numbers.js";
/** @import { Trace, Step } from "../state/trace.js" */

/**
 * @param {Trace} trace @param {Step} step
 * @returns {number | null} −ln of the probability that the constraint left; null: no token was drawn under one
 */
function negLogZ(trace, step) {
  const at = trace.head.chain.findIndex(({ stage }) => stage === mask);
  const record = step.stages[at];
  if (!record || step.source === "forced") return null;
  return Math.max((step.stages[at - 1]?.log_sum_exp ?? step.log_sum_exp) - record.log_sum_exp, 0);
}

/** @param {Trace} trace @param {Step} step @returns {string | null} which token the model would have drawn without the constraint; null: the same */
export function wantedSentence(trace, step) {
  if (!differs(step)) return null;
  const token = visible(trace.nameOf(step.unconstrained_id ?? 0));
  return phrase("wanted", { wanted: token, rule: rule(trace, step), left: visible(trace.nameOf(step.sampled_id)) });
}

/** @param {Trace} trace @returns {string[]} on the whole text; empty where there was no constraint */
export function constraintSentences(trace) {
  const costs = trace.steps.map((step) => negLogZ(trace, step));
  if (costs.every((nats) => nats === null)) return [];
  const sum = costs.reduce((/** @type {number} */ total, nats) => total + (nats ?? 0), 0);
  if (!sum) return [phrase("bent nothing", { rule: rule(trace) })];
  const step = costs.reduce((/** @type {number} */ best, nats, i) => ((nats ?? 0) > (costs[best] ?? 0) ? i : best), 0);
  const costliest = trace.steps[step];
  const sentence = costliest && wantedSentence(trace, costliest);
  return [
    phrase("bent", { rule: rule(trace), nats: sum.toFixed(2), step: countFrom1(step), at: sentence ? `: ${sentence}` : "" }),
    phrase("differed", { count: trace.steps.filter(differs).length, steps: trace.steps.length }),
  ];
}

/** @param {Step} step @returns {boolean} */
const differs = (step) => step.unconstrained_id !== undefined && step.unconstrained_id !== step.sampled_id;

/** @param {Step} step @returns {boolean} whether the budget of a thought left no other token */
export const endsThought = (step) => !!step.refused_by?.includes("thinking_budget");

/** @param {Trace} trace @param {Step} [step] @returns {string} */
const rule = (trace, step) =>
  phrase(step && endsThought(step) ? "budget" : trace.head.grammar ? "grammar" : "no grammar");
