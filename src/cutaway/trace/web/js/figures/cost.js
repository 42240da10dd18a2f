/**
 * The tokens of runs and their cost, computed as on the command line (cli/terminal/reports.py).
 *
 * Knows runs. Knows no document, and no currency.
 */

/** @import { Run } from "../state/store.js" */

/** @typedef {{prompt: number, cached: number, completion: number, whole: boolean}} Usage in tokens. whole:
 *   the runs have ended; else it is the usage so far, without the number of cached tokens */
/** @typedef {{input: number, output: number}} Price of a million tokens */

/** @param {Run} run @returns {Usage} */
export function usageOf(run) {
  const { known: head, steps, end } = run.trace;
  if (!end) {
    return { prompt: head?.prompt_token_ids.length ?? 0, cached: 0, completion: steps.length, whole: false };
  }
  const { prompt_tokens, cached_tokens, completion_tokens } = end.usage;
  return { prompt: prompt_tokens ?? 0, cached: cached_tokens ?? 0, completion: completion_tokens ?? 0, whole: true };
}

/** @param {Usage[]} all @returns {Usage} */
export const total = (all) => all.reduce(
  (sum, usage) => ({ prompt: sum.prompt + usage.prompt, cached: sum.cached + usage.cached,
    completion: sum.completion + usage.completion, whole: sum.whole && usage.whole }),
  { prompt: 0, cached: 0, completion: 0, whole: true });

/** @param {Usage} usage @param {Price} price @returns {{input: number, output: number, total: number}} */
export function cost({ prompt, completion }, price) {
  const [input, output] = [(prompt * price.input) / 1e6, (completion * price.output) / 1e6];
  return { input, output, total: input + output };
}

/** @param {Usage} usage @returns {string} */
export const tokensLine = ({ prompt, cached, completion, whole }) =>
  `${prompt} tokens in${cached ? ` (${cached} cached)` : ""}, ${completion} out${whole ? "" : " so far"}`;

/** @param {Usage} usage @param {Price} price @returns {string} */
export function costLine(usage, price) {
  const costs = cost(usage, price);
  return `cost ${costs.total.toFixed(6)} = ${costs.input.toFixed(6)} in + ${costs.output.toFixed(6)} out`;
}

/** @param {string} text @returns {number | null} null: no price */
export function priceOf(text) {
  const value = Number(text.trim() || "nothing");
  return Number.isFinite(value) && value >= 0 ? value : null;
}
