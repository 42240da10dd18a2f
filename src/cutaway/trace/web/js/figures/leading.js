/**
 * The candidates of a step that a small screen has room for. Knows what follows from the record. Knows no document.
 */

/** @import { CandidateView, StepView } from "./step-view.js" */

/**
 * @param {StepView} view @param {number} limit
 * @returns {(CandidateView & {at: number})[]} the likeliest after the chain, with the text's token among them; `at`: their places in the record
 */
export function leading({ candidates }, limit) {
  const share = (/** @type {CandidateView} */ c) => c.final ?? 0;
  const ranked = candidates.map((candidate, at) => ({ ...candidate, at }))
    .sort((a, b) => share(b) - share(a) || b.probability - a.probability);
  const first = ranked.slice(0, limit);
  const token = ranked.find(({ chosen: is }) => is);
  return token && !first.includes(token) ? [...first.slice(0, -1), token] : first;
}
