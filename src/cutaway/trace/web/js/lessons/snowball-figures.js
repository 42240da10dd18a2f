/**
 * One mistake and two ways on from it: the figures by distance, and what they say of this run.
 *
 * "Said again": the original's own words are given after the mistake. "Free": the model goes on by
 * itself with the same luck. All in bits of surprise under the model's own logits, from the records.
 */

import { bits } from "../figures/numbers.js";
/** @import { Trace, Candidate } from "../state/trace.js" */
/** @import { Run } from "../state/store.js" */

/** So many tokens in a row are no accident: as in cutaway/trace/differences.py. */
export const MEETING = 8;

/**
 * @typedef {{original: Run, at: number, free: Run, again: Run}} Pair
 * @typedef {{distance: number, plain: number | null, again: number | null, free: number | null,
 *   same: boolean}} Point
 * @typedef {{distance: number, shift: number, length: number, parts: boolean}} Meeting
 * @typedef {{name: string, plain: number, again: number, cost: number, free: number | null}} Band
 */

/** @param {Trace} trace @param {number} at @returns {Candidate | null} the likeliest other token, no end token */
export function mistakeAt(trace, at) {
  const step = trace.steps[at];
  const others = step?.candidates.filter((c) => c.id !== step.token_id && !trace.head.end_ids.includes(c.id));
  return others?.reduce((/** @type {Candidate | null} */ best, c) => (best && best.rank < c.rank ? best : c), null) ?? null;
}

/** @param {Trace} trace @param {number} at @returns {number[]} the words after a step; an end token is none */
export function wordsAfter(trace, at) {
  const words = trace.outputIds.slice(at + 1);
  const ended = words.findIndex((id) => trace.head.end_ids.includes(id));
  return ended < 0 ? words : words.slice(0, ended);
}

/**
 * The experiment that a run belongs to: as its original, or as one of the two ways on.
 * @param {Run[]} runs @param {Run} run @param {number} step preferred, where there are several
 * @returns {Pair | null}
 */
export function pairOf(runs, run, step) {
  const pairs = runs.flatMap((again) => pairFrom(runs, again) ?? []);
  const mine = pairs.filter((pair) => [pair.original, pair.free, pair.again].includes(run));
  return mine.findLast((pair) => pair.at === step) ?? mine.at(-1) ?? null;
}

/** @param {Run[]} runs @param {Run} again @returns {Pair | null} null where it gives no words back */
function pairFrom(runs, again) {
  const { at, parent } = again;
  const given = again.request?.forced ?? [];
  const original = runs.find((run) => run.id === parent);
  if (!original || given.length <= at + 1) return null;
  if (given[at] === original.trace.steps[at]?.token_id) return null;
  const steps = original.trace.steps;
  if (!given.every((id, i) => i === at || id === steps[i]?.token_id)) return null;
  const free = runs.find((run) => run.parent === parent && run.at === at
    && run.request?.forced.length === at + 1 && run.request.forced[at] === given[at]);
  return free ? { original, at, free, again } : null;
}

/** @param {Pair} pair @returns {Point[]} by distance from the mistake: 1, 2, … */
export function points({ original, at, free, again }) {
  const meant = wordsAfter(original.trace, at);
  const count = Math.max(meant.length, free.trace.steps.length - at - 1);
  return Array.from({ length: count }, (_, i) => {
    const [plain, said, own] = [original, again, free].map(({ trace }) => trace.steps[at + 1 + i]);
    const meets = i < meant.length;
    return {
      distance: i + 1,
      plain: plain && meets ? bits(plain.logprob) : null,
      again: said && meets && said.token_id === meant[i] ? bits(said.logprob) : null,
      free: own ? bits(own.logprob) : null,
      same: meets && own?.token_id === meant[i],
    };
  });
}

/**
 * Where the free text first says what the original says: `length` tokens, `shift` later there. `parts`:
 * both go on, and not with the same.
 * @param {Pair} pair @returns {Meeting | null}
 */
export function meeting({ original, at, free }) {
  const theirs = wordsAfter(original.trace, at);
  const own = free.trace.outputIds.slice(at + 1);
  /** @type {Map<string, number[]>} */
  const places = new Map();
  for (let j = 0; j + MEETING <= theirs.length; j++) {
    const words = theirs.slice(j, j + MEETING).join();
    places.set(words, [...(places.get(words) ?? []), j]);
  }
  for (let i = 0; i + MEETING <= own.length; i++) {
    const shifts = places.get(own.slice(i, i + MEETING).join())?.map((j) => j - i);
    if (shifts) return met(own, theirs, i, shifts.reduce((a, b) => (Math.abs(b) < Math.abs(a) ? b : a)));
  }
  return null;
}

/** @param {number[]} own @param {number[]} theirs @param {number} i @param {number} shift @returns {Meeting} */
function met(own, theirs, i, shift) {
  let end = i;
  while (end < own.length && own[end] === theirs[end + shift]) end++;
  return { distance: i + 1, shift, length: end - i, parts: end < own.length && end + shift < theirs.length };
}

/** @param {Point[]} all @returns {Band[]} means over 1, 2, 3–4, 5–8 … where the original has words */
export function bands(all) {
  /** @type {Band[]} */
  const found = [];
  for (let from = 1, to = 1; from <= all.length; from = to + 1, to *= 2) {
    const inside = all.slice(from - 1, to);
    const both = inside.filter((p) => p.plain !== null && p.again !== null);
    if (!both.length) break;
    const last = both.at(-1)?.distance ?? to;
    const free = inside.flatMap((p) => p.free ?? []);
    const [plain, again] = [mean(both.map((p) => p.plain ?? 0)), mean(both.map((p) => p.again ?? 0))];
    found.push({ name: from === last ? `${from}` : `${from}–${last}`, plain, again, cost: again - plain,
      free: free.length ? mean(free) : null });
  }
  return found;
}

const EARLY = 4;
const LATE = 9;
const LITTLE = 0.1; // bits a token: less is not worth a word

/** @param {Point[]} all @returns {string} whether the original's words forgave the mistake */
export function againSentence(all) {
  const costs = all.flatMap((p) => (p.plain === null || p.again === null ? [] : [p.again - p.plain]));
  if (costs.length < LATE + 3) {
    return `Only ${costs.length} of the original’s words follow the mistake, too few to see whether it is `
      + "forgiven: take an earlier step, or a longer run.";
  }
  const [early, late] = [mean(costs.slice(0, EARLY)), mean(costs.slice(LATE - 1))];
  const cost = `After the mistake the original’s next ${EARLY} tokens cost ${dearer(early)} each, `
    + `and from the ${LATE}th on ${dearer(late)}`;
  if (Math.abs(early) < LITTLE && Math.abs(late) < LITTLE) return `${cost}: there was nothing to forgive.`;
  if (early <= LITTLE) return `${cost}: it made them no dearer, so there was nothing to forgive.`;
  if (late <= Math.max(LITTLE, early / 5)) return `${cost}: made to talk past the mistake, the model forgives it.`;
  if (late < early) return `${cost}: forgiven in part, within ${costs.length} tokens.`;
  return `${cost}: not forgiven within ${costs.length} tokens.`;
}

/** @param {Point[]} all @param {Meeting | null} met @returns {string} what the free text became */
export function freeSentence(all, met) {
  const own = all.flatMap((p) => p.free ?? []);
  if (!own.length) return "By itself it wrote nothing more.";
  const plain = all.flatMap((p) => p.plain ?? []);
  const beside = plain.length ? `, the original’s by ${mean(plain).toFixed(2)}` : "";
  const bitsTold = `its own words surprise it by ${mean(own).toFixed(2)} bits each${beside}`;
  if (!met) {
    return `Going on by itself it never says ${MEETING} of the original’s tokens in a row again, in ${own.length}; `
      + `${bitsTold}.`;
  }
  const { distance, shift, length, parts } = met;
  const where = shift === 0 ? "at the same place"
    : `${Math.abs(shift)} tokens ${shift > 0 ? "earlier" : "later"} than there`;
  return `Going on by itself it says ${length} of the original’s tokens in a row again from distance ${distance} on, `
    + `${where}${parts ? ", and parts from it again" : ""}; ${bitsTold}.`;
}

/** @param {number} cost @returns {string} */
const dearer = (cost) => `${Math.abs(cost).toFixed(2)} bits ${cost < 0 ? "less" : "more"}`;

/** @param {number[]} values @returns {number} */
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
