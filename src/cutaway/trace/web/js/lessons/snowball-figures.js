/**
 * The effect of one changed token, by distance from it, in figures and sentences.
 *
 * Two runs continue after the mistake. In "again" the original's tokens are forced; in "free" the model continues
 * with the same luck. All figures are bits of surprise under the model's own logits, from the records.
 */

import { SHORTEST_RUN, stretchesOf } from "../figures/common-runs.js";
import { bits } from "../figures/numbers.js";
/** @import { Trace, Candidate } from "../state/trace.js" */
/** @import { Run } from "../state/store.js" */

/**
 * @typedef {{original: Run, at: number, free: Run, again: Run}} Pair
 * @typedef {{distance: number, plain: number | null, again: number | null, free: number | null,
 *   same: boolean}} Point
 * @typedef {{distance: number, shift: number, length: number, diverges: boolean}} Rejoined
 * @typedef {{name: string, plain: number, again: number, cost: number, free: number | null}} Band
 */

/**
 * @param {Trace} trace @param {number} at
 * @returns {Candidate | null} the likeliest token that is less likely than the step's; where none is recorded, the likeliest
 *   other one, which is no mistake; never one that ends the text
 */
export function mistakeAt(trace, at) {
  const step = trace.steps[at];
  if (!step) return null;
  const alternatives = step.candidates.filter((c) => c.id !== step.token_id && !trace.head.end_ids.includes(c.id))
    .sort((a, b) => a.rank - b.rank);
  return alternatives.find(({ rank }) => rank > step.rank) ?? alternatives[0] ?? null;
}

/** @param {Trace} trace @param {number} at @param {number} id of the token in the place of the step's @returns {"mistake" | "change"} */
export function changeWord({ steps }, at, id) {
  const step = steps[at];
  const rank = step?.candidates.find((c) => c.id === id)?.rank ?? Infinity;
  return step && rank < step.rank ? "change" : "mistake";
}

const MUCH = Math.log(3); // nats: a mistake at most a third as likely as the token is plainly one

/** @param {Trace} trace @returns {number | null} the first step whose token was the likeliest and its mistake plainly one; where there is none, a mistake */
export function earlyStep(trace) {
  const firstFrom = (/** @type {number} */ least) => trace.steps.findIndex((_, at) => gapOf(trace, at) >= least);
  const plain = firstFrom(MUCH);
  const at = plain < 0 ? firstFrom(0) : plain;
  return at < 0 ? null : at;
}

/** @param {Trace} trace @param {number} at @returns {number} by how many nats the likeliest token, where the model drew that, is likelier than the mistake; −1: there is none */
function gapOf(trace, at) {
  const step = trace.steps[at];
  const mistake = step?.rank === 1 && step.source !== "forced" ? mistakeAt(trace, at) : null;
  return step && mistake ? step.logprob + step.log_sum_exp - mistake.logit : -1;
}

/** @param {Trace} trace @param {number} at @returns {number[]} the tokens after a step, up to an end token */
export function wordsAfter(trace, at) {
  const words = trace.outputIds.slice(at + 1);
  const end = words.findIndex((id) => trace.head.end_ids.includes(id));
  return end < 0 ? words : words.slice(0, end);
}

/**
 * The experiment that a run belongs to, as its original or as one of the two continuations.
 * @param {Run[]} runs @param {Run} run @param {number} step preferred, where there are several
 * @returns {Pair | null}
 */
export function pairOf(runs, run, step) {
  const pairs = runs.flatMap((again) => pairFrom(runs, again) ?? []);
  const ownPairs = pairs.filter((pair) => [pair.original, pair.free, pair.again].includes(run));
  return ownPairs.findLast((pair) => pair.at === step) ?? ownPairs.at(-1) ?? null;
}

/** @param {Run[]} runs @param {Run} again @returns {Pair | null} null: the run does not force the original's tokens after a mistake */
function pairFrom(runs, again) {
  const { at, parent } = again;
  const forced = again.request?.forced ?? [];
  const original = runs.find((run) => run.id === parent);
  if (!original || forced.length <= at + 1) return null;
  if (forced[at] === original.trace.steps[at]?.token_id) return null;
  const steps = original.trace.steps;
  if (!forced.every((id, i) => i === at || id === steps[i]?.token_id)) return null;
  const free = runs.find((run) => run.parent === parent && run.at === at
    && run.request?.forced.length === at + 1 && run.request.forced[at] === forced[at]);
  return free ? { original, at, free, again } : null;
}

/** @param {Pair} pair @returns {Point[]} by distance from the mistake: 1, 2, … */
export function points({ original, at, free, again }) {
  const expected = wordsAfter(original.trace, at);
  const count = Math.max(expected.length, free.trace.steps.length - at - 1);
  return Array.from({ length: count }, (_, i) => {
    const [plain, forcedStep, freeStep] = [original, again, free].map(({ trace }) => trace.steps[at + 1 + i]);
    const meets = i < expected.length;
    return {
      distance: i + 1,
      plain: plain && meets ? bits(plain.logprob) : null,
      again: forcedStep && meets && forcedStep.token_id === expected[i] ? bits(forcedStep.logprob) : null,
      free: freeStep ? bits(freeStep.logprob) : null,
      same: meets && freeStep?.token_id === expected[i],
    };
  });
}

/**
 * The first common run of the free text and the original. `distance`: where it begins in the free text; `shift`:
 * how many tokens later the original has it; `diverges`: both texts go on after it, with different tokens.
 * @param {Pair} pair @returns {Rejoined | null}
 */
export function firstCommonRun({ original, at, free }) {
  const originalWords = wordsAfter(original.trace, at);
  const freeWords = free.trace.outputIds.slice(at + 1);
  const all = stretchesOf(freeWords, originalWords, 0);
  const first = all.filter(({ a }) => a === all[0]?.a).sort((x, y) => Math.abs(x.b - x.a) - Math.abs(y.b - y.a))[0];
  if (!first) return null;
  const { a, b, length } = first;
  return { distance: a + 1, shift: b - a, length, diverges: a + length < freeWords.length && b + length < originalWords.length };
}

/** @param {Point[]} all @returns {Band[]} means over 1, 2, 3–4, 5–8 … where the original has tokens */
export function bands(all) {
  /** @type {Band[]} */
  const rows = [];
  for (let from = 1, to = 1; from <= all.length; from = to + 1, to *= 2) {
    const inside = all.slice(from - 1, to);
    const complete = inside.filter((p) => p.plain !== null && p.again !== null);
    if (!complete.length) break;
    const last = complete.at(-1)?.distance ?? to;
    const free = inside.flatMap((p) => p.free ?? []);
    const [plain, again] = [mean(complete.map((p) => p.plain ?? 0)), mean(complete.map((p) => p.again ?? 0))];
    rows.push({ name: from === last ? `${from}` : `${from}–${last}`, plain, again, cost: again - plain,
      free: free.length ? mean(free) : null });
  }
  return rows;
}

const EARLY = 4;
const LATE = 9;
const LITTLE = 0.1; // bits per token: a smaller cost counts as none

/** @param {Point[]} all @param {"mistake" | "change"} [word] @returns {string} whether its cost fades while the original's tokens are forced */
export function againSentence(all, word = "mistake") {
  const costs = all.flatMap((p) => (p.plain === null || p.again === null ? [] : [p.again - p.plain]));
  if (costs.length < LATE + 3) {
    return `Only ${costs.length} tokens of the original follow the ${word}, too few to see whether its cost `
      + "fades: choose an earlier step, or a longer run.";
  }
  const [early, late] = [mean(costs.slice(0, EARLY)), mean(costs.slice(LATE - 1))];
  const cost = `After the ${word} the original’s next ${EARLY} tokens cost ${difference(early)} each, `
    + `and from the ${LATE}th on ${difference(late)}`;
  if (early <= LITTLE) return `${cost}: the ${word} made the next tokens no less likely.`;
  if (late <= Math.max(LITTLE, early / 5)) return `${cost}: the model recovers once the original’s tokens follow.`;
  if (late < early) return `${cost}: the model recovers in part, within ${costs.length} tokens.`;
  return `${cost}: the model does not recover within ${costs.length} tokens.`;
}

/** @param {Point[]} all @param {Rejoined | null} meeting @param {"mistake" | "change"} [word] @returns {string} how the free text continues */
export function freeSentence(all, meeting, word = "mistake") {
  const surprises = all.flatMap((p) => p.free ?? []);
  if (!surprises.length) return `Left to itself, the model generates no token after the ${word}.`;
  const plain = all.flatMap((p) => p.plain ?? []);
  const beside = plain.length ? `, those of the original ${mean(plain).toFixed(2)}` : "";
  const surprise = `its own tokens have a surprise of ${mean(surprises).toFixed(2)} bits each${beside}`;
  if (!meeting) {
    return `Left to itself, the model never rejoins the original in ${surprises.length} tokens (no ${SHORTEST_RUN} in a row are equal); `
      + `${surprise}.`;
  }
  const { distance, shift, length, diverges } = meeting;
  const place = shift === 0 ? "at the same position"
    : `${Math.abs(shift)} tokens ${shift > 0 ? "earlier" : "later"} than the original`;
  return `Left to itself, the model repeats ${length} tokens of the original in a row from distance ${distance} on, `
    + `${place}${diverges ? ", and then diverges again" : ""}; ${surprise}.`;
}

/** @param {number} cost @returns {string} */
const difference = (cost) => `${Math.abs(cost).toFixed(2)} bits ${cost < 0 ? "less" : "more"}`;

/** @param {number[]} values @returns {number} */
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
