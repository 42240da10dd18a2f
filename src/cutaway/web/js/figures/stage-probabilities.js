/**
 * One token's way through the chain: what its probability was after each stage.
 *
 * Knows what follows from the record. Knows no document.
 */

import { probability } from "./numbers.js";
import { adjustingStages } from "./recorded.js";
/** @import { Trace, Step, Candidate } from "../state/trace.js" */

/**
 * @param {Trace} trace @param {Step} step @param {Candidate} candidate
 * @returns {(number | null | undefined)[]} by stage; null: removed; undefined: not on record
 */
export function pathOf(trace, step, { logit, delta, removed_by: by }) {
  const adjusting = adjustingStages(trace.head.chain).length;
  let now = Math.fround(logit + delta);
  return trace.head.chain.map((stage, i) => {
    if (by !== null && i >= by) return null;
    if (i < adjusting - 1) return undefined; // only what all of them did together is on record
    if (stage.stage === "temperature") now = Math.fround(now / Math.fround(stage["temperature"]));
    return probability(now - (step.stages[i]?.log_sum_exp ?? 0));
  });
}
