/**
 * The probability of a token after each stage of the chain.
 *
 * Knows what follows from the record. Knows no document.
 */

import { isAdjusting } from "./catalogue.js";
import { probability } from "./numbers.js";
/** @import { Trace, Step, Candidate } from "../state/trace.js" */

/**
 * @param {Trace} trace @param {Step} step @param {Candidate} candidate
 * @returns {(number | null | undefined)[]} by stage; null: removed; undefined: not recorded
 */
export function stageProbabilities(trace, step, { logit, delta, removed_by: by, final_logprob: final }) {
  const { chain } = trace.head;
  // Only the sum of all adjustments of the logit is recorded, so the probabilities between them are unknown.
  const settled = chain.findLastIndex(({ stage }) => isAdjusting(stage));
  const divided = chain.findIndex(({ stage }) => stage === "temperature");
  const mixed = divided >= 0 && divided < settled; // some adjustments come before it, some after
  let now = Math.fround(logit + delta);
  return chain.map((stage, i) => {
    if (by !== null && i >= by) return null;
    if (mixed && i === chain.length - 1 && final !== null) return probability(final);
    if (mixed || i < settled) return undefined;
    if (stage.stage === "temperature") now = Math.fround(now / Math.fround(stage["temperature"]));
    return probability(now - (step.stages[i]?.log_sum_exp ?? 0));
  });
}
