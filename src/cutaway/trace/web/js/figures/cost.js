/**
 * The tokens of runs and their cost, computed as on the command line (cli/terminal/reports.py).
 *
 * Knows runs. Knows no document, and no currency.
 */

/** @import { Run } from "../state/store.js" */

/** @typedef {{prompt: number, cached: number, written: number, whole: boolean}} Usage in tokens. whole:
 *   the runs have ended; else it is the usage so far, without the number of cached tokens */
/** @typedef {{input: number, output: number}} Price of a million tokens */

/** @param {Run} run @returns {Usage} */
export function usageOf(run) {
  const { known, steps, end } = run.trace;
  if (!end) {
    return { prompt: known?.prompt_token_ids.length ?? 0, cached: 0, written: steps.length, whole: false };
  }
  const { prompt_tokens, cached_tokens, completion_tokens } = end.usage;
  return { prompt: prompt_tokens ?? 0, cached: cached_tokens ?? 0, written: completion_tokens ?? 0, whole: true };
}

/** @param {Usage[]} all @returns {Usage} */
export const total = (all) => all.reduce(
  (sum, one) => ({ prompt: sum.prompt + one.prompt, cached: sum.cached + one.cached,
    written: sum.written + one.written, whole: sum.whole && one.whole }),
  { prompt: 0, cached: 0, written: 0, whole: true });

/** @param {Usage} usage @param {Price} price @returns {{input: number, output: number, total: number}} */
export function cost({ prompt, written }, price) {
  const [input, output] = [(prompt * price.input) / 1e6, (written * price.output) / 1e6];
  return { input, output, total: input + output };
}

/** @param {Usage} usage @returns {string} */
export const tokensLine = ({ prompt, cached, written, whole }) =>
  `${prompt} tokens in${cached ? ` (${cached} cached)` : ""}, ${written} out${whole ? "" : " so far"}`;

/** @param {Usage} usage @param {Price} price @returns {string} */
export function costLine(usage, price) {
  const paid = cost(usage, price);
  return `cost ${paid.total.toFixed(6)} = ${paid.input.toFixed(6)} in + ${paid.output.toFixed(6)} out`;
}

/** @param {string} text @returns {number | null} null: no price */
export function priceOf(text) {
  const value = Number(text.trim() || "nothing");
  return Number.isFinite(value) && value >= 0 ? value : null;
}
