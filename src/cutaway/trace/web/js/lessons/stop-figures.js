/**
 * Why a text does not stop: the end token at every step, which filter would have left it in, and what
 * another run changed. All from the record, and exact unless a sentence says otherwise.
 */

import { percent } from "../figures/numbers.js";
import { endMoment, endedByToken, outcomePhrase, whySentence } from "../figures/endings.js";
/** @import { Trace } from "../state/trace.js" */
/** @import { EndMoment } from "../figures/endings.js" */
/** @import { Run } from "../state/store.js" */

/** Top-k as the slider has it; 0 keeps all. */
export const KEEPS = [1, 2, 5, 10, 20, 40, 100, 200, 500, 1000, 2000, 5000, 10_000, 0];

/** @type {WeakMap<Trace, {seen: number, moments: EndMoment[]}>} a live run grows */
const known = new WeakMap();

/** @param {Trace} trace @returns {EndMoment[]} of the steps that have an end token on record */
export function momentsOf(trace) {
  const found = known.get(trace) ?? { seen: 0, moments: [] };
  known.set(trace, found);
  for (const step of trace.steps.slice(found.seen)) {
    const moment = endMoment(trace, step);
    if (moment) found.moments.push(moment);
  }
  found.seen = trace.steps.length;
  return found.moments;
}

/** @param {Trace} trace @returns {EndMoment[]} those at which it went on */
export function goneOn(trace) {
  const moments = momentsOf(trace);
  return endedByToken(trace) ? moments.filter((m) => m.index < trace.steps.length - 1) : moments;
}

/** @param {EndMoment[]} moments @returns {EndMoment | null} at which an end was likeliest */
export const likeliest = (moments) =>
  moments.reduce((/** @type {EndMoment | null} */ best, m) =>
    (best && best.probability >= m.probability ? best : m), null);

/** @param {EndMoment[]} moments @param {number} k @returns {EndMoment[]} where top-k alone keeps an end token */
export const within = (moments, k) => (k === 0 ? moments : moments.filter((m) => m.rank <= k));

/** @param {EndMoment[]} moments @returns {Map<string, EndMoment[]>} by what became of the end token */
export function byLetter(moments) {
  /** @type {Map<string, EndMoment[]>} */
  const groups = new Map();
  for (const moment of moments) {
    const group = groups.get(moment.letter);
    if (group) group.push(moment);
    else groups.set(moment.letter, [moment]);
  }
  return groups;
}

/** @param {number[]} shares @returns {number} that one of them happens: 1 − ∏ (1 − p) */
export const anyOf = (shares) =>
  0 - Math.expm1(shares.reduce((sum, p) => sum + Math.log1p(-Math.min(p, 1)), 0));

/** @param {Trace} trace @returns {boolean} */
export const isGreedy = (trace) => trace.head.params["temperature"] === 0;

/** @param {Trace} trace @returns {string} what kept the text going: the model, the chain, or luck */
export function diagnosis(trace) {
  const moments = goneOn(trace);
  if (!moments.length) return "There is no step on record at which it went on.";
  if (trace.head.params["ignore_eos"]) return "ignore_eos was set, so the text went on past every end token.";
  const [plain, left] = [anyOf(moments.map((m) => m.probability)), anyOf(moments.map((m) => m.final))];
  const chances = `Unfiltered, it had a chance of ${percent(plain)} of ending earlier; `
    + `after the chain, ${percent(left)}.`;
  if (isGreedy(trace)) return `${chances} Greedy takes the likeliest token alone, and the end token was never that.`;
  if (plain < 0.05) return `${chances} The model itself did not want to stop: no filter is to blame.`;
  if (plain < 0.5) {
    return `${chances} The model mostly wanted to go on, and ${left < plain / 2
      ? "the chain removed what chance of an end there was" : "what chance of an end there was did not come"}.`;
  }
  return `${chances} ${left < plain / 2 ? "The chain kept it from stopping." : "The chain let it stop; the luck did not."}`;
}

/** @param {EndMoment[]} moments @param {number} k @returns {string} */
export function withinSentence(moments, k) {
  const inside = within(moments, k);
  const rule = k === 0 ? "With no filter" : `With top-k ${k} and no other filter`;
  const steps = `${inside.length} of ${moments.length} steps`;
  if (!inside.length) return `${rule}, the end token would have survived at no step.`;
  const bent = inside.some((m) => m.delta !== 0) ? " Ranks are the model’s own, before penalties." : "";
  return `${rule}, the end token would have survived at ${steps}; up to ${percent(Math.max(...inside.map((m) => m.probability)))} `
    + `of the probability was its own.${bent}`;
}

/** @param {Run[]} runs @param {Run} run @returns {{original: Run, again: Run} | null} the last that was begun here */
export function rerunOf(runs, run) {
  const made = runs.flatMap((again) => {
    const original = runs.find((other) => other.id === again.parent);
    const same = again.request?.forced.length === again.at;
    return original && same ? [{ original, again }] : [];
  });
  return made.findLast(({ original, again }) => original === run || again === run) ?? null;
}

/** @param {Run} original @param {Run} again @returns {string[]} what changed, in sentences */
export function changes({ trace: was }, { trace: now, at }) {
  const parted = now.steps.findIndex((step, i) => step.token_id !== was.steps[i]?.token_id);
  return [
    atMoment(was, now, at),
    parted < 0 ? "The same luck chose the same tokens, as far as both go."
      : parted >= was.steps.length ? `Up to step ${parted} it is the same text; it goes on where the first run ended.`
      : `The texts part at step ${parted}: the first has “${was.nameOf(was.steps[parted]?.token_id ?? -1)}”, `
        + `this one “${now.nameOf(now.steps[parted]?.token_id ?? -1)}”.`,
    `Before: ${whySentence(was)} Now: ${whySentence(now)}`,
  ];
}

/** @param {Trace} was @param {Trace} now @param {number} at @returns {string} */
function atMoment(was, now, at) {
  const [before, after] = [was, now].map((trace) => momentsOf(trace).find((m) => m.index === at));
  if (!before || !after) return `Step ${at} has no end token on record.`;
  const share = after.final > 0 ? ` (its share of what was left: ${percent(after.final)})` : "";
  const same = before.outcome === after.outcome;
  return `At step ${at} the end token ${outcomePhrase(before.outcome)}; `
    + `${same ? "again it" : "now it"} ${outcomePhrase(after.outcome)}${share}.`;
}
