/**
 * The candidates of one step as bands of a river: their probabilities under the model and after each stage of the chain,
 * what each stage cut off, luck, and the token that won. Every figure is the record's, or its complement to 1. Knows no document.
 */

import { stageNamed } from "./catalogue.js";
import { hue, percent, probability, stageLabel, stageLetter, thousands, visible, withSign } from "./numbers.js";
import { stageProbabilities } from "./step-view.js";
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
 * cut      how many tokens a stage removed, with which probability before it, the likeliest of them; null: none
 * @typedef {{tokens: number, share: number, names: string[]}} Cut
 * @typedef {{stage: string, letter: string, label: string, help: string, colour: string, cut: Cut | null}} Gate
 *
 * rests    as `shares` of a band. drawn: the token that won the draw; chosen: that of the text, another one where it was forced
 * @typedef {{bands: Band[], rests: Rest[], gates: Gate[], isGreedy: boolean, isForced: boolean, drawn: string, chosen: string,
 *   probability: number, bits: string}} River
 */

/** @param {Trace} trace @param {Step} step @returns {River} */
export function riverOf(trace, step) {
  const isGreedy = trace.head.params["temperature"] === 0;
  const gates = step.stages.map((record, i) => gateOf(trace, step, record, i));
  const bands = step.candidates.toSorted((a, b) => a.rank - b.rank).map((c) => bandOf(trace, step, c));
  const rests = restsOf(bands, [trace.head.vocab_size, ...step.stages.map(({ survivors }) => survivors)]);
  if (isGreedy) gates.push(greedyGate(bands, rests));
  return {
    bands, rests, gates, isGreedy, isForced: step.source === "forced",
    drawn: trace.nameOf(step.sampled_id), chosen: trace.nameOf(step.token_id),
    probability: probability(step.logprob), bits: `${(Math.max(-step.logprob, 0) / Math.LN2).toFixed(2)} bits`,
  };
}

/** @param {Trace} trace @param {Step} step @param {Candidate} c @returns {Band} */
function bandOf(trace, step, c) {
  const drawable = c.final_logprob !== null && c.luck !== null;
  return {
    id: c.id, token: trace.nameOf(c.id), cutAt: c.removed_by,
    shares: [probability(c.logit - step.log_sum_exp), ...stageProbabilities(trace, step, c)],
    start: drawable ? c.final_logprob : null, luck: drawable ? c.luck : null,
    score: drawable ? (c.final_logprob ?? 0) + (c.luck ?? 0) : null,
    isDrawn: c.id === step.sampled_id, isChosen: c.id === step.token_id,
  };
}

/** @param {Band[]} bands @param {number[]} left how many tokens there are, by column @returns {Rest[]} */
const restsOf = (bands, left) => left.map((count, column) => {
  const shares = bands.map(({ shares: all }) => all[column]);
  const others = count - shares.filter((share) => share !== null).length;
  if (shares.includes(undefined)) return { count: others, share: undefined };
  const sum = shares.reduce((/** @type {number} */ total, share) => total + (share ?? 0), 0);
  return { count: others, share: others > 0 ? Math.max(1 - sum, 0) : 0 };
});

/**
 * @param {Trace} trace @param {Step} step @param {import("../state/trace.js").StageRecord} record @param {number} i
 * @returns {Gate}
 */
function gateOf(trace, step, record, i) {
  const stage = trace.head.chain[i] ?? { stage: "?" };
  const tokens = (step.stages[i - 1]?.survivors ?? trace.head.vocab_size) - record.survivors;
  return {
    ...lookOf(stage), label: stageLabel(stage),
    cut: tokens > 0 ? { tokens, share: record.removed_mass, names: record.top_removed.map((id) => trace.nameOf(id)) } : null,
  };
}

/** @param {import("./numbers.js").Stage} stage */
const lookOf = (stage) => ({ stage: stage.stage, letter: stageLetter(stage), colour: hue(stageLetter(stage)),
  help: stageNamed.get(stage.stage)?.help ?? "" });

/**
 * Temperature 0, which no chain has as a stage: one band of 100 %.
 * @param {Band[]} bands @param {Rest[]} rests both get one more column @returns {Gate}
 */
function greedyGate(bands, rests) {
  const at = rests.length - 1;
  const left = rests[at] ?? { count: 0, share: 0 };
  const others = bands.filter((band) => band.shares[at] !== null && !band.isDrawn);
  const winner = bands.find(({ isDrawn }) => isDrawn);
  const tokens = left.count + others.length - (winner ? 0 : 1);
  const share = 1 - (winner?.shares[at] ?? 0);
  const names = others.slice(0, 8).map(({ token }) => token);
  for (const band of bands) {
    band.shares.push(band.isDrawn ? 1 : null);
    if (others.includes(band)) band.cutAt = at;
  }
  rests.push(winner ? { count: 0, share: 0 } : { count: 1, share: 1 });
  return { ...lookOf({ stage: "temperature" }), label: "temperature 0", cut: tokens > 0 ? { tokens, share, names } : null };
}

// -- in words -------------------------------------------------------------------------------------

/** @param {River} river @returns {string} what won, and why; what was cut off */
export const riverSentence = (river) => [won(river), ...river.gates.flatMap(cutSentence)].join(" ");

/** @param {River} river @returns {string} */
function won(river) {
  const { bands, isForced, isGreedy, drawn, chosen } = river;
  if (isForced) return `${visible(chosen)} was forced; luck would have drawn ${drawn === chosen ? "the same" : visible(drawn)}.`;
  const winner = bands.find(({ isDrawn }) => isDrawn);
  if (!winner) return `${visible(drawn)} was drawn.`;
  const share = percent(winner.shares[0]);
  if (isGreedy) return `${visible(drawn)} (${share}) was taken: at temperature 0 the likeliest token that is left always is.`;
  const luck = `luck ${withSign(winner.luck ?? 0)}`;
  const [next] = rivalsOf(river);
  if (!next) return `${visible(drawn)} (${share}) was the only candidate left.`;
  const likeliest = bands.filter(({ score }) => score !== null).reduce((a, b) => ((b.start ?? 0) > (a.start ?? 0) ? b : a));
  if (likeliest === winner) {
    const lead = ((winner.score ?? 0) - (next.score ?? 0)).toFixed(2);
    return `${visible(drawn)} (${share}), the likeliest that was left, won with ${luck}, ${lead} ahead of ${visible(next.token)}.`;
  }
  const best = `${visible(likeliest.token)}, the likeliest with ${percent(likeliest.shares[0])}`;
  return `${visible(drawn)} (${share}) won by ${luck}; ${best}, had ${withSign(likeliest.luck ?? 0)}.`;
}

/** @param {River} river @returns {Band[]} those that lost the draw, the highest score first */
export const rivalsOf = ({ bands }) => bands.filter(({ score, isDrawn }) => score !== null && !isDrawn)
  .sort((a, b) => (b.score ?? 0) - (a.score ?? 0));

/** @param {Gate} gate @returns {string[]} */
const cutSentence = ({ label, cut }) => (cut
  ? [`${label[0]?.toUpperCase()}${label.slice(1)} cut off ${counted(cut.tokens)} with ${percent(cut.share)} of the probability.`] : []);

/** @param {number} tokens @returns {string} */
export const counted = (tokens) => `${thousands(tokens)} ${tokens === 1 ? "token" : "tokens"}`;
