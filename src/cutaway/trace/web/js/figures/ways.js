/**
 * How a text was computed: with the KV cache or without, with drafts or without; what that cost in tokens and in passes;
 * and which runs are one text computed in several ways, as their hashes prove. Knows the record. Knows no document.
 */

import { thousands } from "./numbers.js";
/** @import { Run } from "../state/store.js" */
/** @import { Trace } from "../state/trace.js" */

/** @typedef {{kv_cache: boolean, speculate: string}} Way settings, of which none changes a token */

/** The ways that the page offers. @type {Way[]} */
export const WAYS = [{ kv_cache: true, speculate: "off" }, { kv_cache: false, speculate: "off" }, { kv_cache: true, speculate: "ngram" }];

/** @param {Trace} trace @returns {Way} as recorded; older traces have not both */
export const wayOf = ({ head: { params } }) => ({ kv_cache: params["kv_cache"] ?? true, speculate: params["speculate"] ?? "off" });

/** @param {Way} way @returns {string} */
export const wayPhrase = ({ kv_cache: caches, speculate }) =>
  [caches ? "" : "without the KV cache", speculate === "off" ? "" : `with drafts (${speculate})`].filter(Boolean).join(" and ")
    || "with the KV cache";

/** @param {Trace} trace @returns {string} */
const phraseOf = (trace) => wayPhrase(wayOf(trace));

/** @param {Trace} a @param {Trace} b @returns {boolean} whether b has the same prompt and the same logits, as far as both go, computed in another way */
function isTwin(a, b) {
  const last = Math.min(a.steps.length, b.steps.length) - 1;
  return phraseOf(a) !== phraseOf(b) && last >= 0 && a.steps[last]?.fingerprint === b.steps[last]?.fingerprint
    && a.head.prompt_token_ids.join() === b.head.prompt_token_ids.join() && !a.head.decoder;
}

/** @param {Run[]} runs @param {Run} run @returns {Run | null} the latest run of the same text that was computed in another way */
export const twinOf = (runs, run) => runs.findLast((other) => other.trace.known && isTwin(run.trace, other.trace)) ?? null;

/**
 * How many tokens the model computed for a text: without the cache each step computes all tokens before its own; with it
 * the first computes those of the prompt that no cache had, and each later pass the last token and its drafts.
 * @param {Trace} trace @returns {number}
 */
export function computedTokens(trace) {
  const { head, steps, end } = trace;
  if (!wayOf(trace).kv_cache) return steps.reduce((sum, { position }) => sum + position, 0);
  const { proposed = 0, accepted = 0 } = end?.speculation ?? {};
  const cached = end?.usage["cached_tokens"] ?? 0;
  return head.prompt_token_ids.length - cached + Math.max(steps.length - 1, 0) + proposed - accepted;
}

/** @param {Trace} trace @returns {string} what the drafts came to; "" where none was proposed, or the text has not ended */
export function draftSentence(trace) {
  const { proposed = 0, accepted = 0 } = trace.end?.speculation ?? {};
  if (!proposed) return "";
  const passes = trace.steps.length - accepted; // each right one saved a pass
  return `${thousands(accepted)} of ${thousands(proposed)} draft tokens were right (underlined): ${thousands(passes)} passes of the model `
    + `wrote ${thousands(trace.steps.length)} tokens.`;
}

/** @param {Run} run @param {Run | null} twin of the same text @returns {string} how both were computed, and what that cost */
export function waySentence({ trace }, twin) {
  const cost = `Written ${phraseOf(trace)}: the model computed ${thousands(computedTokens(trace))} tokens.`;
  const other = twin && `Run ${twin.id} is the same text ${phraseOf(twin.trace)}, ${thousands(computedTokens(twin.trace))} tokens: `
    + "every step has the same hash.";
  return [cost, draftSentence(trace), other].filter(Boolean).join(" ");
}
