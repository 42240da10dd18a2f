/**
 * What the model offers after given tokens: its likeliest next ones, and what it would take itself.
 *
 * Knows runs that were asked for one token more than was given. Knows no document.
 */

import { probability, stageLabel, stageLetter, visible } from "./numbers.js";
/** @import { Run } from "../state/store.js" */
/** @import { Step } from "../state/trace.js" */

/** How many can be chosen from, with a digit for each. */
export const MOST_OFFERS = 8;

/**
 * @typedef {{id: number, token: string, probability: number, own: boolean, ends: boolean,
 *   letter: string, removedBy: string | null}} Offer
 */

/** @param {Run} run @returns {number[]} the tokens that were given */
export const picks = (run) => run.request?.forced ?? [];

/** @param {Run} run @returns {Step | null} the first that was not given; null: the text has ended */
export const openStep = (run) => run.trace.steps[picks(run).length] ?? null;

/**
 * @param {Run} run @param {Step} step
 * @returns {Offer[]} the likeliest, best first; what the model drew is always among them
 */
export function offers(run, step) {
  const likeliest = step.candidates.slice(0, MOST_OFFERS);
  const drawn = step.candidates.find((candidate) => candidate.id === step.sampled_id);
  if (drawn && !likeliest.includes(drawn)) likeliest.splice(MOST_OFFERS - 1, 1, drawn);
  const { trace } = run;
  return likeliest.map((candidate) => {
    const stage = candidate.removed_by === null ? undefined : trace.head.chain[candidate.removed_by];
    return {
      id: candidate.id,
      token: visible(trace.nameOf(candidate.id)),
      probability: probability(candidate.logit - step.log_sum_exp),
      own: candidate.id === step.sampled_id,
      ends: trace.head.end_ids.includes(candidate.id),
      letter: stage ? stageLetter(stage) : "",
      removedBy: stage ? stageLabel(stage) : null,
    };
  });
}
