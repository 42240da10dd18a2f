/**
 * What texts took and what they cost, as the command line reckons it (cli/reports.py).
 *
 * Knows runs. Knows no document, and no currency.
 */

/** @import { Run } from "../state/store.js" */

/** @typedef {{prompt: number, cached: number, written: number, whole: boolean}} Taken whole: of runs
 *   that have ended; else what is on record so far, which does not say how many were cached */
/** @typedef {{input: number, output: number}} Price of a million tokens */

/** @param {Run} run @returns {Taken} */
export function taken(run) {
  const { known, steps, end } = run.trace;
  if (!end) {
    return { prompt: known?.prompt_token_ids.length ?? 0, cached: 0, written: steps.length, whole: false };
  }
  const { prompt_tokens, cached_tokens, completion_tokens } = end.usage;
  return { prompt: prompt_tokens ?? 0, cached: cached_tokens ?? 0, written: completion_tokens ?? 0, whole: true };
}

/** @param {Taken[]} all @returns {Taken} */
export const total = (all) => all.reduce(
  (sum, one) => ({ prompt: sum.prompt + one.prompt, cached: sum.cached + one.cached,
    written: sum.written + one.written, whole: sum.whole && one.whole }),
  { prompt: 0, cached: 0, written: 0, whole: true });

/** @param {Taken} taken @param {Price} price @returns {{input: number, output: number, total: number}} */
export function cost({ prompt, written }, price) {
  const [input, output] = [(prompt * price.input) / 1e6, (written * price.output) / 1e6];
  return { input, output, total: input + output };
}

/** @param {Taken} taken @returns {string} */
export const tokensLine = ({ prompt, cached, written, whole }) =>
  `${prompt} tokens in${cached ? ` (${cached} cached)` : ""}, ${written} out${whole ? "" : ", as far as on record"}`;

/** @param {Taken} taken @param {Price} price @returns {string} */
export function costLine(taken, price) {
  const paid = cost(taken, price);
  return `cost ${paid.total.toFixed(6)} = ${paid.input.toFixed(6)} in + ${paid.output.toFixed(6)} out`;
}

/** @param {string} text @returns {number | null} null: no price */
export function priceOf(text) {
  const value = Number(text.trim() || "nothing");
  return Number.isFinite(value) && value >= 0 ? value : null;
}
