/**
 * Which step of a text is worth a look first.
 *
 * Knows a trace. Knows no document.
 */

/** @import { Trace } from "../state/trace.js" */

/**
 * @param {Trace} trace
 * @returns {number} the step whose token was drawn with the least probability under the model; a forced
 *   token, or one that ends the text, only where there is no other
 */
export function mostUncertain({ steps, head }) {
  const own = steps.filter(({ source, token_id }) => source !== "forced" && !head.end_ids.includes(token_id));
  const all = own.length ? own : steps;
  return all.reduce((a, b) => (b.logprob < a.logprob ? b : a), all[0] ?? { index: 0, logprob: 0 }).index;
}
