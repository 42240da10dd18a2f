/**
 * The tokens that a step's token was drawn from: its likeliest rivals, and the sums that decided. Knows the record, and
 * no document.
 */

import { bits, countFrom1, finalProbability, percent, probability, stageLabel, wordOf } from "./numbers.js";
import { score } from "./endings.js";
/** @import { Trace, Step, Candidate } from "../state/trace.js" */

/** @typedef {{name: string, share: number}} Rival `share`: its probability after the chain */

const LIMIT = 4;

/** @param {Step} step @param {Candidate} candidate @returns {number} its probability after the chain; 0: a stage removed it */
const shareOf = (step, candidate) => finalProbability(step, candidate) ?? 0;

/** @param {Step} step @returns {Candidate | undefined} */
const tokenOf = (step) => step.candidates.find(({ id }) => id === step.token_id);

/** @param {Trace} trace @param {Step} step @returns {{token: Rival, rivals: Rival[]}} the rivals likeliest first, without those that could not be drawn */
export function rivals(trace, step) {
  const rival = (/** @type {Candidate} */ candidate) => ({ name: trace.nameOf(candidate.id), share: shareOf(step, candidate) });
  const likeliest = step.candidates.filter(({ id }) => id !== step.token_id).map(rival)
    .filter(({ share }) => share > 0).sort((a, b) => b.share - a.share).slice(0, LIMIT);
  const candidate = tokenOf(step);
  return { token: candidate ? rival(candidate) : { name: trace.nameOf(step.token_id), share: 0 }, rivals: likeliest };
}

const SURPRISING = 4; // bits

/**
 * @param {Trace} trace @param {Step} step
 * @returns {Rival & {id: number} | null} the token that the model wanted at a surprising step, with its probability under
 *   the model; null: the step surprised by no more than 4 bits, or has the likeliest token
 */
export function findFavourite(trace, step) {
  const first = step.candidates.find(({ rank }) => rank === 1);
  if (!first || first.id === step.token_id || bits(step.logprob) <= SURPRISING) return null;
  return { id: first.id, name: trace.nameOf(first.id), share: probability(first.logit - step.log_sum_exp) };
}

/** @param {Trace} trace @param {Step} step @returns {string} "choose: 0.1%. Why did it win?" */
export const question = (trace, step) =>
  `${wordOf(trace.nameOf(step.token_id))}: ${percent(probability(step.logprob))}. Why did it win?`;

/** @param {Trace} trace @param {Step} step @returns {string} the sums of log-probability and luck; empty: the step was not drawn by luck */
export function answer(trace, step) {
  const alive = step.candidates.filter(({ final_logprob: final, luck }) => final !== null && luck !== null);
  const token = alive.find(({ id }) => id === step.token_id);
  const second = alive.filter((candidate) => candidate !== token).sort((a, b) => score(b) - score(a))[0];
  if (!token || step.source === "forced") return "";
  const sum = (/** @type {Candidate} */ c) => `${formatSigned(c.final_logprob ?? 0)} ${(c.luck ?? 0) < 0 ? "−" : "+"} `
    + `${Math.abs(c.luck ?? 0).toFixed(2)} = ${formatSigned(score(c))}`;
  const other = second ? `; ${wordOf(trace.nameOf(second.id))} had ${sum(second)}` : "";
  return `Log-probability and luck: ${sum(token)}${other}. The highest sum is drawn.`;
}

/** @param {number} value @returns {string} */
const formatSigned = (value) => `${value < 0 ? "−" : ""}${Math.abs(value).toFixed(2)}`;

/** @param {Trace} trace @param {Step} step @returns {string} the step in one sentence, for those who hear the page */
export function stepSentence(trace, step) {
  const likelier = step.candidates.find(({ rank }) => rank === 1);
  const other = likelier && likelier.id !== step.token_id ? `; ${wordOf(trace.nameOf(likelier.id))} was likelier` : "";
  return `Step ${countFrom1(step.index)} of ${trace.steps.length}: ${wordOf(trace.nameOf(step.token_id))}, `
    + `${percent(probability(step.logprob))}, rank ${step.rank}${other}`;
}

/** @param {Trace} trace @param {Step} step @param {Candidate} candidate @returns {string} */
export function candidateSentence(trace, step, candidate) {
  const stage = candidate.removed_by === null ? undefined : trace.head.chain[candidate.removed_by];
  const fate = stage ? `removed by ${stageLabel(stage)}` : `${percent(shareOf(step, candidate))} after the chain`;
  return `${wordOf(trace.nameOf(candidate.id))}, ${percent(probability(candidate.logit - step.log_sum_exp))}, rank ${candidate.rank}, ${fate}`
    + `${candidate.id === step.token_id ? "; the text's token" : ""}`;
}
