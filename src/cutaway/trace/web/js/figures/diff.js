/**
 * The differences of two traces, as in trace/differences.py: where they diverge, what they have in common after that,
 * and the surprise of each text. Knows the records only, and no document.
 */

import { bits, probability } from "./numbers.js";
import { commonRuns } from "./common-runs.js";
/** @import { Trace, Step, Head } from "../state/trace.js" */
/** @import { CommonRun } from "./common-runs.js" */

/**
 * changes         the fields of the heads and the settings that differ
 * common          the number of equal tokens at the beginning
 * logitsDifferAt  the first step up to the divergence whose logits are not equal bit for bit
 * divergence      null: the texts are equal; a continuation is null where that text has ended
 * commonRuns      stretches that are equal after the divergence, in the order of both texts
 * @typedef {{name: string, a: any, b: any}} Change
 * @typedef {{id: number, token: string, underA: number | null, underB: number | null}} Continuation
 * @typedef {{tokens: number, bits: number}} Cost
 * @typedef {{changes: Change[], samePrompt: boolean, common: number, logitsDifferAt: number | null,
 *   divergence: {index: number, a: Continuation | null, b: Continuation | null} | null, commonRuns: CommonRun[],
 *   a: Cost, b: Cost, aAfter: Cost, bAfter: Cost}} Difference
 */

/** @param {Trace} a @param {Trace} b @returns {Difference} */
export function diff(a, b) {
  const [left, right] = [a.outputIds, b.outputIds];
  const common = commonLength(left, right);
  return {
    changes: changes(a.head, b.head),
    samePrompt: same(a.head.prompt_token_ids, b.head.prompt_token_ids),
    common,
    logitsDifferAt: logitsDifferAt(a.steps, b.steps, common),
    divergence: divergence(a, b, common),
    commonRuns: commonRuns(left, right, common),
    a: cost(a.steps),
    b: cost(b.steps),
    aAfter: cost(a.steps.slice(common)),
    bAfter: cost(b.steps.slice(common)),
  };
}

/** @param {number[]} a @param {number[]} b @returns {number} */
function commonLength(a, b) {
  const shorter = Math.min(a.length, b.length);
  const differs = a.findIndex((id, i) => i >= shorter || id !== b[i]);
  return differs < 0 ? shorter : differs;
}

/** @param {Head} a @param {Head} b @returns {Change[]} */
function changes(a, b) {
  const [left, right] = [flat(a), flat(b)];
  return Object.keys({ ...left, ...right })
    .filter((name) => !same(left[name] ?? null, right[name] ?? null))
    .map((name) => ({ name, a: left[name] ?? null, b: right[name] ?? null }));
}

/**
 * @param {Head} head
 * @returns {Record<string, any>} its own fields and its params, which agree where they have the same name; the text of
 *   a grammar is a param, too
 */
function flat(head) {
  const { kind: _, format: _format, version: _version, params, grammar, interventions, ...fields } = /** @type {any} */ (head);
  const more = Object.entries(params).filter(([name]) => !(name in fields));
  const engine = grammar ? { "grammar engine": grammar.engine } : {};
  const inside = interventions ? { interventions: interventions.map((/** @type {any} */ intervention) => intervention.text).join("; ") } : {};
  return { ...fields, ...engine, ...inside, ...Object.fromEntries(more) };
}

/** @param {any} a @param {any} b @returns {boolean} whether they are equal as JSON */
function same(a, b) {
  if (a === b) return true;
  if (typeof a !== "object" || typeof b !== "object" || !a || !b) return false;
  const names = Object.keys({ ...a, ...b });
  return Array.isArray(a) === Array.isArray(b)
    && names.every((name) => name in a && name in b && same(a[name], b[name]));
}

/** @param {Step[]} a @param {Step[]} b @param {number} common @returns {number | null} */
function logitsDifferAt(a, b, common) {
  // The step at which they diverge still follows equal tokens.
  const last = Math.min(common + 1, a.length, b.length);
  const at = a.slice(0, last).findIndex((step, i) => step.logits_hash !== b[i]?.logits_hash);
  return at < 0 ? null : at;
}

/** @param {Trace} a @param {Trace} b @param {number} index @returns {Difference["divergence"]} */
function divergence(a, b, index) {
  const [inA, inB] = [a.steps[index], b.steps[index]];
  if (!inA && !inB) return null;
  /** @param {Trace} trace @param {Step | undefined} step @returns {Continuation | null} */
  const continuation = (trace, step) => step ? {
    id: step.token_id,
    token: trace.nameOf(step.token_id),
    underA: share(inA, step.token_id),
    underB: share(inB, step.token_id),
  } : null;
  return { index, a: continuation(a, inA), b: continuation(b, inB) };
}

/** @param {Step | undefined} step @param {number} id @returns {number | null} null: not recorded */
function share(step, id) {
  const match = step?.candidates.find((candidate) => candidate.id === id);
  return step && match ? probability(match.logit - step.log_sum_exp) : null;
}

/** @param {Step[]} steps @returns {Cost} */
const cost = (steps) =>
  ({ tokens: steps.length, bits: steps.reduce((sum, step) => sum + bits(step.logprob), 0) });
