/**
 * Why a text does not stop: the end token at every step, which top-k would have kept it, and what another run
 * changed. All follows exactly from the record, unless a sentence says otherwise.
 */

import { countFrom1, percent } from "../figures/numbers.js";
import { momentsBeforeEnd, outcomePhrase, whySentence } from "../figures/endings.js";
import { seriesOf } from "../figures/series.js";
/** @import { Trace } from "../state/trace.js" */
/** @import { EndMoment } from "../figures/endings.js" */
/** @import { Run } from "../state/store.js" */

/** Values of top-k on the slider; 0 keeps all tokens. */
export const KEEPS = [1, 2, 5, 10, 20, 40, 100, 200, 500, 1000, 2000, 5000, 10_000, 0];

/** @param {Trace} trace @returns {EndMoment[]} of the steps after which the text went on */
export const passedMoments = (trace) => momentsBeforeEnd(trace, seriesOf(trace).moments);

/** @param {EndMoment[]} moments @param {number} k @returns {EndMoment[]} those where top-k alone would keep an end token */
export const momentsWithin = (moments, k) => (k === 0 ? moments : moments.filter((m) => m.rank <= k));

/** @param {EndMoment[]} moments @param {number} k @returns {string} */
export function keepSentence(moments, k) {
  const inside = momentsWithin(moments, k);
  const rule = k === 0 ? "With no filter" : `With top-k ${k} and no other filter`;
  const steps = `${inside.length} of ${moments.length} steps`;
  if (!inside.length) return `${rule}, the end token would have survived at no step.`;
  const bent = inside.some((m) => m.delta !== 0) ? " Ranks are those of the model’s own logits, before penalties." : "";
  return `${rule}, the end token would have survived at ${steps}, with a probability of up to `
    + `${percent(Math.max(...inside.map((m) => m.probability)))}.${bent}`;
}

/** @param {Run[]} runs @param {Run} run @returns {{original: Run, again: Run} | null} the latest rerun, with its original */
export function rerunOf(runs, run) {
  const reruns = runs.flatMap((again) => {
    const original = runs.find((other) => other.id === again.parent);
    const same = again.request?.forced.length === again.at;
    return original && same ? [{ original, again }] : [];
  });
  return reruns.findLast(({ original, again }) => original === run || again === run) ?? null;
}

/** @param {Run} original @param {Run} again @returns {string[]} what changed, in sentences */
export function changes({ trace: was }, { trace: now, at }) {
  const divergence = now.steps.findIndex((step, i) => step.token_id !== was.steps[i]?.token_id);
  return [
    momentChange(was, now, at),
    divergence < 0 ? "The same luck chose the same tokens, up to the end of the shorter text."
      : divergence >= was.steps.length ? `The texts are equal up to step ${was.steps.length}, where the first run ended.`
      : `The texts diverge at step ${countFrom1(divergence)}: the first has “${was.nameOf(was.steps[divergence]?.token_id ?? -1)}”, `
        + `this one “${now.nameOf(now.steps[divergence]?.token_id ?? -1)}”.`,
    `Before: ${whySentence(was)} Now: ${whySentence(now)}`,
  ];
}

/** @param {Trace} was @param {Trace} now @param {number} at @returns {string} */
function momentChange(was, now, at) {
  const [before, after] = [was, now].map((trace) => seriesOf(trace).moments[at]);
  if (!before || !after) return `Step ${countFrom1(at)} has no recorded end token.`;
  const share = after.final > 0 ? ` (its probability after the chain: ${percent(after.final)})` : "";
  const same = before.outcome === after.outcome;
  return `At step ${countFrom1(at)} the end token ${outcomePhrase(before.outcome)}; `
    + `${same ? "again it" : "now it"} ${outcomePhrase(after.outcome)}${share}.`;
}
