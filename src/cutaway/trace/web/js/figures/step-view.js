/**
 * The figures of one step as they are shown, like trace/views.py; its probabilities stage by stage; and which steps
 * are uncertain. Knows what follows from the record. Knows no document.
 */

import { isAdjusting } from "./catalogue.js";
import { wantedSentence } from "./constraint.js";
import { endMoment, score } from "./endings.js";
import { LN2, bits, finalProbability, probability, stageLabel, stageLetter } from "./numbers.js";
/** @import { EndMoment } from "./endings.js" */
/** @import { Trace, Step, Candidate } from "../state/trace.js" */

/**
 * @typedef {{id: number, token: string, probability: number, final: number | null, rank: number,
 *   logit: number, delta: number, luck: number | null, score: number | null, letter: string | null,
 *   removedBy: string | null, chosen: boolean, drawn: boolean}} CandidateView
 * @typedef {{letter: string, label: string, survivors: number, removedMass: number,
 *   topRemoved: string[]}} StageView
 * @typedef {{index: number, position: number, id: number, token: string, source: string,
 *   rank: number, bits: number, entropy: number, probability: number, final: number | null,
 *   end: EndMoment | null, candidates: CandidateView[], stages: StageView[], kvTokens: number | null,
 *   kvBytes: number, ms: Record<string, number>, fingerprint: string, rowHash: string,
 *   bent: string | null}} StepView
 */

/** @param {Trace} trace @param {Step} step @returns {StepView} all figures of a step */
export function stepView(trace, step) {
  return {
    index: step.index,
    position: step.position,
    id: step.token_id,
    token: trace.nameOf(step.token_id),
    source: step.source,
    rank: step.rank,
    bits: bits(step.logprob),
    entropy: step.entropy / LN2,
    probability: probability(step.logprob),
    final: chosenFinal(step),
    end: endMoment(trace, step),
    candidates: step.candidates.map((candidate) => candidateView(trace, step, candidate)),
    stages: step.stages.map((record, i) => {
      const stage = trace.head.chain[i] ?? { stage: "?" };
      return {
        letter: stageLetter(stage),
        label: stageLabel(stage),
        survivors: record.survivors,
        removedMass: record.removed_mass,
        topRemoved: record.top_removed.map((id) => trace.nameOf(id)),
      };
    }),
    kvTokens: step.kv_tokens ?? null, // a canvas has no single number
    kvBytes: (step.kv_tokens ?? 0) * trace.head.kv_bytes_per_token,
    ms: step.ms,
    fingerprint: step.fingerprint,
    rowHash: step.logits_hash,
    bent: wantedSentence(trace, step),
  };
}

/** @param {Step} step @returns {number | null} of its token */
function chosenFinal(step) {
  const candidate = step.candidates.find(({ id }) => id === step.token_id);
  return candidate ? finalProbability(step, candidate) : null;
}

/** @param {Trace} trace @param {Step} step @param {Candidate} c @returns {CandidateView} */
export function candidateView(trace, step, c) {
  const stage = c.removed_by === null ? null : (trace.head.chain[c.removed_by] ?? null);
  return {
    id: c.id,
    token: trace.nameOf(c.id),
    probability: probability(c.logit - step.log_sum_exp),
    final: finalProbability(step, c),
    rank: c.rank,
    logit: c.logit,
    delta: c.delta,
    luck: c.luck,
    score: c.final_logprob === null ? null : score(c),
    letter: stage ? stageLetter(stage) : null,
    removedBy: stage ? stageLabel(stage) : null,
    chosen: c.id === step.token_id,
    drawn: c.id === step.sampled_id,
  };
}

/** @param {Step} step @returns {boolean} whether no token has a probability of 0.5 or more under the model */
export const isUncertain = (step) => step.maximum - step.log_sum_exp < Math.log(0.5);

/**
 * @param {Trace} trace @returns {number} the step whose token had the least probability under the model; a forced
 *   token, or one that ends the text, only where there is no other
 */
export function mostUncertain({ steps, head }) {
  const freeSteps = steps.filter(({ source, token_id }) => source !== "forced" && !head.end_ids.includes(token_id));
  const all = freeSteps.length ? freeSteps : steps;
  return all.reduce((a, b) => (b.logprob < a.logprob ? b : a), all[0] ?? { index: 0, logprob: 0 }).index;
}

/**
 * @param {Trace} trace @param {Step} step @param {Candidate} candidate
 * @returns {(number | null | undefined)[]} by stage; null: removed; undefined: not recorded
 */
export function stageProbabilities(trace, step, { logit, delta, removed_by: by, final_logprob: final }) {
  const { chain } = trace.head;
  // Only the sum of all adjustments of the logit is recorded, so the probabilities between them are unknown.
  const settled = chain.findLastIndex(({ stage }) => isAdjusting(stage));
  const divided = chain.findIndex(({ stage }) => stage === "temperature");
  const mixed = divided >= 0 && divided < settled; // some adjustments come before it, some after
  let now = Math.fround(logit + delta);
  return chain.map((stage, i) => {
    if (by !== null && i >= by) return null;
    if (mixed && i === chain.length - 1 && final !== null) return probability(final);
    if (mixed || i < settled) return undefined;
    if (stage.stage === "temperature") now = Math.fround(now / Math.fround(stage["temperature"]));
    return probability(now - (step.stages[i]?.log_sum_exp ?? 0));
  });
}
