/**
 * Why a text ended, and why not before: the figures and sentences of trace/endings.py. Knows what follows from
 * the record. Knows no document.
 */

import { phrase } from "./catalogue.js";
import { countFrom1, finalProbability, hue, ordinal, percent, probability, stageLabel, stageLetter, visible } from "./numbers.js";
/** @import { Trace, Step, Candidate } from "../state/trace.js" */

/**
 * How close one step came to ending the text. `probability`: of all end tokens under the model's own logits;
 * `final`: of drawing one of them; `margin`: nats by which the end token lost the draw, or another was likelier at temperature 0.
 * @typedef {{index: number, probability: number, final: number, rank: number, delta: number,
 *   outcome: string, letter: string, margin: number | null}} EndMoment
 */

/** @type {Record<string, string>} letters of outcomes that are not a stage */
const OUTCOMES = { drawn: "●", lost: "○", outranked: "○", forced: "→", "an unknown stage": "?" };

/** @type {Record<string, string>} colours of outcomes that are not a stage */
const COLOURS = { "●": "var(--ink)", "○": "var(--faint)", "→": "var(--bar-final)", "?": "var(--line)" };

/** @param {string} letter of an outcome @returns {string} */
export const outcomeColour = (letter) => COLOURS[letter] ?? hue(letter);

/** @param {Trace} trace @param {Step} step @returns {EndMoment | null} null: no end token is on record */
export function endMoment(trace, step) {
  const ends = step.candidates.filter((c) => trace.head.end_ids.includes(c.id));
  const [first] = ends;
  if (!first) return null;
  const best = ends.reduce((a, b) => (b.logit > a.logit ? b : a), first);
  const alive = ends.filter((c) => c.final_logprob !== null);
  const { outcome, letter, margin } = outcomeOf(trace, step, ends, alive);
  return {
    index: step.index,
    probability: sum(ends.map((c) => probability(c.logit - step.log_sum_exp))),
    final: sum(alive.map((c) => finalProbability(step, c) ?? 0)),
    rank: best.rank,
    delta: best.delta,
    outcome,
    letter: letter ?? OUTCOMES[outcome] ?? "?",
    margin,
  };
}

/**
 * @param {Trace} trace @param {Step} step @param {Candidate[]} ends @param {Candidate[]} alive
 * @returns {{outcome: string, letter?: string, margin: number | null}}
 */
function outcomeOf(trace, step, ends, alive) {
  if (trace.head.end_ids.includes(step.token_id)) {
    return { outcome: step.source === "forced" ? "forced" : "drawn", margin: null };
  }
  if (!alive.length) {
    const stages = ends.flatMap((c) => (c.removed_by === null ? [] : [c.removed_by]));
    const last = stages.length ? trace.head.chain[Math.max(...stages)] : undefined;
    if (!last) return { outcome: "an unknown stage", margin: null };
    return { outcome: stageLabel(last), letter: stageLetter(last), margin: null };
  }
  if (step.source === "forced") return { outcome: "forced", margin: null };
  const chosenCandidate = step.candidates.find((c) => c.id === step.token_id);
  const outcome = chosenCandidate?.luck === null ? "outranked" : "lost";
  return { outcome, margin: (chosenCandidate ? score(chosenCandidate) : 0) - Math.max(...alive.map(score)) };
}

/** @param {Candidate} c @returns {number} what the draw compares, up to a constant */
export const score = (c) => (c.final_logprob ?? 0) + (c.luck ?? 0);

/** @param {Trace} trace @returns {boolean} */
export const isGreedy = (trace) => trace.head.params["temperature"] === 0;

/** @param {Trace} trace @returns {boolean} whether the last token ended the text, and is not part of it */
export const endedByToken = (trace) =>
  trace.end !== null && ["end_token", "stop_token"].includes(trace.end.reason);

/**
 * @param {Trace} trace @param {(EndMoment | null)[]} moments of every step
 * @returns {EndMoment[]} of the steps after which the text went on
 */
export const momentsBeforeEnd = (trace, moments) =>
  (endedByToken(trace) ? moments.slice(0, -1) : moments).flatMap((moment) => moment ?? []);

/** @param {EndMoment[]} moments @returns {EndMoment[]} the likeliest first */
export const closest = (moments) => moments.toSorted((a, b) => b.probability - a.probability);

/**
 * @param {Trace} trace @param {(EndMoment | null)[]} moments of every step
 * @returns {EndMoment | null} the step that came closest to ending the text and did not; null: none came near
 */
export function findNearMiss(trace, moments) {
  const before = momentsBeforeEnd(trace, moments);
  const best = before.reduce((/** @type {EndMoment | null} */ a, b) => (a && a.probability >= b.probability ? a : b), null);
  return best && best.probability >= NEAR ? best : null;
}

const NEAR = 0.01;

// -- in words -------------------------------------------------------------------------------------

/** @param {Trace} trace @param {(EndMoment | null)[]} moments of every step @returns {string} what the line under the text shows */
export function endSentence(trace, moments) {
  const [first] = closest(momentsBeforeEnd(trace, moments));
  const ending = endedByToken(trace) ? `the end token came at step ${trace.steps.length}` : "the end token did not end the text";
  const peak = first ? `before, its probability was highest at step ${countFrom1(first.index)}, ${percent(first.probability)}, where it `
    + outcomePhrase(first.outcome) : "";
  return `The end by step: ${[ending, peak].filter(Boolean).join("; ")}.`;
}

/** Outcomes in which no stage removed the end token. */
export const IN_PLAY = ["drawn", "forced", "lost", "outranked"];

/** @param {string} outcome @returns {string} "was chosen", "was removed by top-k 40" */
export const outcomePhrase = (outcome) =>
  IN_PLAY.includes(outcome) ? phrase(outcome) : phrase("removed", { stage: outcome });

/** @param {Trace} trace @returns {string} which condition ended it */
export function whySentence(trace) {
  const { end } = trace;
  const count = trace.steps.length;
  if (!end) return phrase("unfinished");
  const tokens = count === 1 ? phrase("one token") : phrase("many tokens", { count });
  const match = typeof end.matched === "number" ? trace.nameOf(end.matched) : String(end.matched);
  const figures = { tokens, name: `'${visible(match)}'`, came: came(trace), error: end.error ?? "" };
  return phrase("ended", { reason: phrase(end.reason, figures) });
}

/** @param {Trace} trace @returns {string} how the last token was chosen */
function came({ steps }) {
  const step = steps.at(-1);
  if (!step) return phrase("reached");
  return phrase(step.source === "forced" ? "given at" : "drawn at", { step: countFrom1(step.index) });
}

/** @param {Trace} trace @param {EndMoment} moment @returns {string} how close that step came to ending the text */
export function momentSentence(trace, moment) {
  const { index, rank, delta } = moment;
  return phrase("status", {
    step: countFrom1(index),
    rank: rank === 1 ? phrase("likeliest") : phrase("nth likeliest", { nth: ordinal(rank) }),
    share: percent(moment.probability),
    changed: delta ? phrase("changed", { delta: `${delta < 0 ? "" : "+"}${delta.toFixed(2)}` }) : "",
    became: whatBecame(trace, moment),
  });
}

/** @param {Trace} trace @param {EndMoment} moment @returns {string} of the end token */
function whatBecame(trace, { index, outcome, final, margin: nats }) {
  const step = trace.steps[index];
  const last = index === trace.steps.length - 1;
  if (outcome === "drawn") return phrase(last ? "it was drawn" : "drawn and passed");
  if (outcome === "forced") {
    const would = step && trace.head.end_ids.includes(step.sampled_id) && step.token_id !== step.sampled_id;
    return phrase(would ? "given instead" : "given");
  }
  if (nats === null) return phrase("a stage removed it", { stage: outcome });
  const margin = nats.toFixed(2);
  return outcome === "outranked" ? phrase("outranked by", { margin }) : phrase("lost the draw", { share: percent(final), margin });
}

/** @param {number[]} values @returns {number} */
const sum = (values) => values.reduce((a, b) => a + b, 0);
