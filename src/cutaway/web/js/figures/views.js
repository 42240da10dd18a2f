/**
 * One step in the figures that a person looks at, and why a text ended: as trace/views.py and
 * trace/endings.py have it. Knows what follows from the record. Knows no document.
 */

import { LN2, bits, ordinal, percent, probability, stageLabel, stageLetter } from "./numbers.js";
/** @import { Trace, Step, Candidate } from "../state/trace.js" */

/**
 * @typedef {{id: number, token: string, probability: number, final: number | null, rank: number,
 *   logit: number, delta: number, luck: number | null, score: number | null, letter: string | null,
 *   removedBy: string | null, chosen: boolean, drawn: boolean}} CandidateView
 * @typedef {{letter: string, label: string, survivors: number, removedMass: number,
 *   victims: string[]}} StageView
 * @typedef {{index: number, probability: number, final: number, rank: number, delta: number,
 *   outcome: string, letter: string, behind: number | null}} EndMoment
 * @typedef {{index: number, position: number, id: number, token: string, source: string,
 *   rank: number, bits: number, entropy: number, probability: number, final: number | null,
 *   end: EndMoment | null, candidates: CandidateView[], stages: StageView[], kvTokens: number,
 *   kvBytes: number, ms: Record<string, number>, fingerprint: string}} StepView
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
    final: step.final_logprob === null ? null : probability(step.final_logprob),
    end: endMoment(trace, step),
    candidates: step.candidates.map((candidate) => candidateView(trace, step, candidate)),
    stages: step.stages.map((record, i) => {
      const stage = trace.head.chain[i] ?? { stage: "?" };
      return {
        letter: stageLetter(stage),
        label: stageLabel(stage),
        survivors: record.survivors,
        removedMass: record.removed_mass,
        victims: record.victims.map((id) => trace.nameOf(id)),
      };
    }),
    kvTokens: step.kv_tokens,
    kvBytes: step.kv_tokens * trace.head.kv_bytes,
    ms: step.ms,
    fingerprint: step.fingerprint,
  };
}

/** @param {Trace} trace @param {Step} step @param {Candidate} c @returns {CandidateView} */
function candidateView(trace, step, c) {
  const stage = c.removed_by === null ? null : (trace.head.chain[c.removed_by] ?? null);
  return {
    id: c.id,
    token: trace.nameOf(c.id),
    probability: probability(c.logit - step.log_sum_exp),
    final: c.final_logprob === null ? null : probability(c.final_logprob),
    rank: c.rank,
    logit: c.logit,
    delta: c.delta,
    luck: c.luck,
    score: c.final_logprob === null ? null : score(c),
    letter: stage ? stageLetter(stage) : null,
    removedBy: stage ? stageLabel(stage) : null,
    chosen: c.id === step.token_id,
    drawn: c.id === step.own,
  };
}

/** @param {Candidate} c @returns {number} what the draw compares */
const score = (c) => (c.final_logprob ?? 0) + (c.luck ?? 0);

/** @param {Step} step @returns {boolean} whether the model gave no token as much as one half */
export const isUncertain = (step) => step.maximum - step.log_sum_exp < Math.log(0.5);

// -- the end --------------------------------------------------------------------------------------

/** @type {Record<string, string>} letters for what is no stage */
const OUTCOMES = { drawn: "●", lost: "○", forced: "→", "an unknown stage": "?" };

/**
 * @param {Trace} trace @param {Step} step
 * @returns {EndMoment | null} how close a step came to ending the text; null: nothing on record
 */
export function endMoment(trace, step) {
  const ends = step.candidates.filter((c) => trace.head.end_ids.includes(c.id));
  const [first] = ends;
  if (!first) return null;
  const best = ends.reduce((a, b) => (b.logit > a.logit ? b : a), first);
  const alive = ends.filter((c) => c.final_logprob !== null);
  const { outcome, letter, behind } = outcomeOf(trace, step, ends, alive);
  return {
    index: step.index,
    probability: sum(ends.map((c) => probability(c.logit - step.log_sum_exp))),
    final: sum(alive.map((c) => probability(c.final_logprob ?? 0))),
    rank: best.rank,
    delta: best.delta,
    outcome,
    letter: letter ?? OUTCOMES[outcome] ?? "?",
    behind,
  };
}

/**
 * @param {Trace} trace @param {Step} step @param {Candidate[]} ends @param {Candidate[]} alive
 * @returns {{outcome: string, letter?: string, behind: number | null}}
 */
function outcomeOf(trace, step, ends, alive) {
  if (trace.head.end_ids.includes(step.token_id)) {
    return { outcome: step.source === "forced" ? "forced" : "drawn", behind: null };
  }
  if (!alive.length) {
    const stages = ends.flatMap((c) => (c.removed_by === null ? [] : [c.removed_by]));
    const last = stages.length ? trace.head.chain[Math.max(...stages)] : undefined;
    if (!last) return { outcome: "an unknown stage", behind: null };
    return { outcome: stageLabel(last), letter: stageLetter(last), behind: null };
  }
  if (step.source === "forced") return { outcome: "forced", behind: null };
  const chosen = step.candidates.find((c) => c.id === step.token_id);
  return { outcome: "lost", behind: (chosen ? score(chosen) : 0) - Math.max(...alive.map(score)) };
}

/** @param {string} outcome @returns {string} what became of the end token, in words */
export function outcomePhrase(outcome) {
  /** @type {Record<string, string>} */
  const known = {
    drawn: "was drawn",
    forced: "had no say, since a token was given",
    lost: "survived and lost the draw",
  };
  return known[outcome] ?? `was removed by ${outcome}`;
}

/** @param {Trace} trace @returns {boolean} whether the last token ended it, and is no part of it */
export const endedByToken = (trace) =>
  trace.end !== null && ["end_token", "stop_token"].includes(trace.end.reason);

/** @param {Trace} trace @returns {string} which condition ended it, in a sentence */
export function whySentence(trace) {
  const { end } = trace;
  const count = trace.steps.length;
  if (!end) return "It has not ended, or the record was cut short.";
  const tokens = `${count} token${count === 1 ? "" : "s"}`;
  const name = typeof end.matched === "number" ? trace.nameOf(end.matched) : String(end.matched);
  /** @type {Record<string, string>} */
  const reasons = {
    end_token: `the end token “${name}” came at step ${count - 1}`,
    stop_token: `the stop token “${name}” came at step ${count - 1}`,
    stop_string: `the text reached the stop string “${name}”`,
    max_tokens: `it had ${tokens}, which is max_tokens`,
    context_full: `the context was full after ${tokens}`,
    aborted: `it was stopped after ${tokens}`,
    error: `of an error after ${tokens}: ${end.error}`,
  };
  return `It ended because ${reasons[end.reason] ?? end.reason}.`;
}

/**
 * @param {Trace} trace @param {number} count
 * @param {(EndMoment | null)[]} moments of every step, for whoever has them already
 * @returns {EndMoment[]} closest to ending before
 */
export function closest(trace, count = 5, moments = trace.steps.map((step) => endMoment(trace, step))) {
  return (endedByToken(trace) ? moments.slice(0, -1) : moments)
    .flatMap((moment) => moment ?? [])
    .sort((a, b) => b.probability - a.probability)
    .slice(0, count);
}

/** @param {EndMoment} moment @returns {string} for a person */
export function momentSentence(moment) {
  const rank = moment.rank === 1 ? "likeliest" : `${ordinal(moment.rank)} likeliest`;
  const told = `step ${moment.index}: the end token was the ${rank} with ${percent(moment.probability)}`;
  if (moment.outcome !== "lost") return `${told}, and ${outcomePhrase(moment.outcome)}`;
  const by = (moment.behind ?? 0).toFixed(2);
  return `${told}, survived the chain with ${percent(moment.final)}, and lost by ${by}`;
}

/** @param {number[]} values @returns {number} */
const sum = (values) => values.reduce((a, b) => a + b, 0);
