/**
 * The tokens that can be picked next: the model's likeliest ones, and the one that it drew.
 *
 * Knows runs that generate one token after those that are forced. Knows no document.
 */

import { candidateView } from "./step-view.js";
/** @import { Run } from "../state/store.js" */
/** @import { Step } from "../state/trace.js" */

/** How many tokens are offered; each has a digit as its key. */
export const MOST_OFFERS = 8;

/** @typedef {import("./step-view.js").CandidateView & {ends: boolean}} Offer */

/** @param {Run} run @returns {number[]} the forced tokens */
export const picks = (run) => run.request?.forced ?? [];

/** @param {Run} run @returns {Step | null} the first that was not forced; null: the text has ended */
export const openStep = (run) => run.trace.steps[picks(run).length] ?? null;

/**
 * @param {Run} run @param {Step} step
 * @returns {Offer[]} the likeliest first; the token that was drawn is always among them
 */
export function offers(run, step) {
  const likeliest = step.candidates.slice(0, MOST_OFFERS);
  const drawnCandidate = step.candidates.find((candidate) => candidate.id === step.sampled_id);
  if (drawnCandidate && !likeliest.includes(drawnCandidate)) likeliest.splice(MOST_OFFERS - 1, 1, drawnCandidate);
  const { trace } = run;
  return likeliest.map((candidate) =>
    ({ ...candidateView(trace, step, candidate), ends: trace.head.end_ids.includes(candidate.id) }));
}
