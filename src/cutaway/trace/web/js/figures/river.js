/**
 * The candidates of one step as bands of a river: their probabilities under the model and after each stage of the chain,
 * what each stage cut off, luck, and the token that won. Every figure is the record's, or its complement to 1. Knows no document.
 */

import { labelOf, stageNamed } from "./catalogue.js";
import { bits, hue, percent, probability, short, stageLabel, stageLetter, thousands, visible, withSign } from "./numbers.js";
import { placesOf } from "./sketch.js";
import { stageProbabilities } from "./step-view.js";
/** @import { Param } from "./catalogue.js" */
/** @import { Trace, Step, Candidate } from "../state/trace.js" */

/**
 * shares   in the model's own prediction, then after each gate; null: removed; undefined: the record does not have it
 * cutAt    the gate that removed it; null: it survived all
 * start    log-probability after the last gate, to which luck is added; null: there was no draw for it
 * @typedef {{id: number, token: string, shares: (number | null | undefined)[], cutAt: number | null, start: number | null,
 *   luck: number | null, score: number | null, isDrawn: boolean, isChosen: boolean}} Band
 *
 * What has no band of its own: how many tokens, with which probability.
 * @typedef {{count: number, share: number | undefined}} Rest
 *
 * at       the stage in the chain; null: none, and then isGreedy: temperature 0, after which one token is left
 * cut      how many tokens a stage removed, with which probability before it, the likeliest of them; null: none
 * param    its one number, where a drawing can follow it; value: in force
 * @typedef {{tokens: number, share: number, names: string[]}} Cut
 * @typedef {{at: number | null, isGreedy: boolean, letter: string, label: string, help: string, colour: string, cut: Cut | null,
 *   param: Param | null, value: number}} Gate
 *
 * rests    as `shares` of a band. drawn: the token that won the draw; chosen: that of the text, another one where it was forced
 * @typedef {{bands: Band[], rests: Rest[], gates: Gate[], isGreedy: boolean, isForced: boolean, drawn: string, chosen: string,
 *   probability: number, bits: string}} River
 */

/** @param {Trace} trace @param {Step} step @returns {River} */
export function riverOf(trace, step) {
  const isGreedy = trace.head.params["temperature"] === 0;
  const gates = gatesOf(trace, step);
  const bands = step.candidates.toSorted((a, b) => a.rank - b.rank).map((c) => bandOf(trace, step, c, gates));
  const rests = restsOf(bands, leftBy(trace, step, gates));
  const at = gates.findIndex((gate) => gate.isGreedy);
  if (at >= 0) gates[at] = { .../** @type {Gate} */ (gates[at]), cut: greedyCut(bands, rests, at) };
  return {
    bands, rests, gates, isGreedy, isForced: step.source === "forced",
    drawn: trace.nameOf(step.sampled_id), chosen: trace.nameOf(step.token_id),
    probability: probability(step.logprob), bits: `${bits(step.logprob).toFixed(2)} bits`,
  };
}

/**
 * The stages of the chain, and in their order those of the usual settings that are off, so that they can be turned on.
 * @param {Trace} trace @param {Step} step @returns {Gate[]}
 */
function gatesOf(trace, step) {
  const isGreedy = trace.head.params["temperature"] === 0;
  const gates = step.stages.map((record, i) => gateOf(trace, step, record, i));
  const places = step.pass_index === undefined ? placesOf(trace) : [];
  const all = places.flatMap(({ name, param, value }) => {
    const at = trace.head.chain.findIndex(({ stage }) => stage === name);
    if (at >= 0) return { .../** @type {Gate} */ (gates[at]), param, value: value ?? 0 };
    if (!param || !OFTEN.has(stageNamed.get(name)?.law ?? "")) return [];
    const label = `${labelOf(name)} ${short(value ?? 0)}`;
    return { ...turnedOff(name, isGreedy && name === "temperature"), label, param, value: value ?? 0 };
  });
  if (all.filter(({ at }) => at !== null).length === gates.length) return all;
  return isGreedy ? [...gates, { ...turnedOff("temperature", true), label: "temperature 0" }] : gates; // the record has no order
}

/** @param {string} stage @param {boolean} isGreedy @returns {Gate} of a stage that is not in the chain */
const turnedOff = (stage, isGreedy) => ({ ...lookOf({ stage }), at: null, isGreedy, label: stage, cut: null, param: null, value: 0 });

/** Laws of the stages that have a gate where they are off, too. */
const OFTEN = new Set(["divide", "share"]);

/**
 * @param {Trace} trace @param {Step} step @param {import("../state/trace.js").StageRecord} record @param {number} at
 * @returns {Gate}
 */
function gateOf(trace, step, record, at) {
  const stage = trace.head.chain[at] ?? { stage: "?" };
  const tokens = (step.stages[at - 1]?.survivors ?? trace.head.vocab_size) - record.survivors;
  return {
    ...lookOf(stage), at, isGreedy: false, label: stageLabel(stage), param: null, value: 0,
    cut: tokens > 0 ? { tokens, share: record.removed_mass, names: record.top_removed.map((id) => trace.nameOf(id)) } : null,
  };
}

/** @param {import("./numbers.js").Stage} stage */
const lookOf = (stage) => ({ letter: stageLetter(stage), colour: hue(stageLetter(stage)), help: stageNamed.get(stage.stage)?.help ?? "" });

/** @param {Trace} trace @param {Step} step @param {Candidate} c @param {Gate[]} gates @returns {Band} */
function bandOf(trace, step, c, gates) {
  const drawable = c.final_logprob !== null && c.luck !== null;
  const isDrawn = c.id === step.sampled_id;
  const byStage = stageProbabilities(trace, step, c);
  /** @type {(number | null | undefined)[]} */
  const shares = [probability(c.logit - step.log_sum_exp)];
  for (const { at, isGreedy } of gates) {
    const before = shares.at(-1);
    shares.push(at !== null ? byStage[at] : isGreedy && before !== null ? (isDrawn ? 1 : null) : before);
  }
  const end = shares.indexOf(null);
  return {
    id: c.id, token: trace.nameOf(c.id), shares, cutAt: end < 0 ? null : end - 1,
    start: drawable ? c.final_logprob : null, luck: drawable ? c.luck : null,
    score: drawable ? (c.final_logprob ?? 0) + (c.luck ?? 0) : null,
    isDrawn, isChosen: c.id === step.token_id,
  };
}

/** @param {Trace} trace @param {Step} step @param {Gate[]} gates @returns {number[]} how many tokens there are, by column */
const leftBy = ({ head }, step, gates) => gates.reduce((/** @type {number[]} */ counts, { at, isGreedy }) =>
  [...counts, at !== null ? step.stages[at]?.survivors ?? 0 : isGreedy ? 1 : counts.at(-1) ?? 0], [head.vocab_size]);

/** @param {Band[]} bands @param {number[]} left how many tokens there are, by column @returns {Rest[]} */
const restsOf = (bands, left) => left.map((count, column) => {
  const shares = bands.map(({ shares: all }) => all[column]);
  const remainder = count - shares.filter((share) => share !== null).length;
  if (shares.includes(undefined)) return { count: remainder, share: undefined };
  const sum = shares.reduce((/** @type {number} */ total, share) => total + (share ?? 0), 0);
  return { count: remainder, share: remainder > 0 ? Math.max(1 - sum, 0) : 0 };
});

/** @param {Band[]} bands @param {Rest[]} rests @param {number} at the gate @returns {Cut | null} what temperature 0 leaves no chance */
function greedyCut(bands, rests, at) {
  const losers = bands.filter(({ cutAt }) => cutAt === at);
  const winner = bands.find(({ isDrawn }) => isDrawn);
  const tokens = (rests[at]?.count ?? 0) + losers.length - (winner ? 0 : 1);
  const share = 1 - (winner?.shares[at] ?? 0);
  return tokens > 0 ? { tokens, share, names: losers.slice(0, 8).map(({ token }) => token) } : null;
}

// -- in words -------------------------------------------------------------------------------------

/** @param {River} river @returns {string} what won, and why; what was cut off */
export function riverSentence(river) {
  const cuts = river.gates.flatMap(({ label, cut }) => (cut ? [`${formatTokenCount(cut.tokens)} with ${percent(cut.share)} by ${label}`] : []));
  return cuts.length ? `${explainWinner(river)} Cut off: ${cuts.join(", ")}.` : explainWinner(river);
}

/** @param {River} river @returns {string} */
function explainWinner(river) {
  const { bands, isForced, isGreedy, drawn: sample, chosen: token } = river;
  if (isForced) return `${visible(token)} was forced; luck would have drawn ${sample === token ? "the same" : visible(sample)}.`;
  const winner = bands.find(({ isDrawn }) => isDrawn);
  if (!winner) return `${visible(sample)} was drawn.`;
  const share = percent(winner.shares[0]);
  if (isGreedy) return `${visible(sample)} (${share}) was taken: at temperature 0 the likeliest token that is left always is.`;
  const luck = `luck ${withSign(winner.luck ?? 0)}`;
  const [next] = rivalsOf(river);
  if (!next) return `${visible(sample)} (${share}) was the only candidate left.`;
  const likeliest = bands.filter(({ score }) => score !== null).reduce((a, b) => ((b.start ?? 0) > (a.start ?? 0) ? b : a));
  if (likeliest === winner) {
    const lead = ((winner.score ?? 0) - (next.score ?? 0)).toFixed(2);
    return `${visible(sample)} (${share}), the likeliest that was left, won with ${luck}, ${lead} ahead of ${visible(next.token)}.`;
  }
  const best = `${visible(likeliest.token)}, the likeliest with ${percent(likeliest.shares[0])}`;
  return `${visible(sample)} (${share}) won by ${luck}; ${best}, had ${withSign(likeliest.luck ?? 0)}.`;
}

/** @param {River} river @returns {Band[]} those that lost the draw, the highest score first */
export const rivalsOf = ({ bands }) => bands.filter(({ score, isDrawn }) => score !== null && !isDrawn)
  .sort((a, b) => (b.score ?? 0) - (a.score ?? 0));

/** @param {number} tokens @returns {string} */
export const formatTokenCount = (tokens) => `${thousands(tokens)} ${tokens === 1 ? "token" : "tokens"}`;
