/**
 * A step of a run in the form in which the server makes exercises of it, and the summary of the answers.
 *
 * Does not know which answers are right: the server does.
 */

import { probability, stageLabel, visible } from "../figures/numbers.js";
import { canvasOf } from "../figures/canvas.js";
/** @import { Trace } from "../state/trace.js" */

/**
 * @typedef {{text: string, token_ids: number[], names: string[], logits: number[], seed: string,
 *   position: number, run: {step: number, log_sum_exp: number, chain: string, own: number,
 *   drawn: string}}} Start
 * @typedef {{text: string, best: string[], drawn: string[], p: number[], second: number[], p_drawn: number[],
 *   entropy: number[], made: number}} Cells
 * @typedef {"right" | "right at the second try" | "missed"} Mark
 */

const MOST_TEXT = 300; // characters
const MOST_CELLS = 6; // as many as can be worked through by hand

/** @param {Trace} trace @param {number} index @returns {Start | null} null where there is no such step */
export function startOf(trace, index) {
  const step = trace.steps[index];
  if (!step || step.candidates.length < 2) return null;
  return {
    text: textBefore(trace, index),
    token_ids: step.candidates.map((c) => c.id),
    names: step.candidates.map((c) => trace.nameOf(c.id)),
    logits: step.candidates.map((c) => c.logit),
    seed: trace.head.seed,
    position: step.position,
    run: {
      step: index,
      log_sum_exp: step.log_sum_exp,
      chain: chainOf(trace),
      own: step.sampled_id,
      drawn: trace.nameOf(step.sampled_id),
    },
  };
}

/** @param {Trace} trace @param {number} index @returns {string} the end of the text before the step */
function textBefore(trace, index) {
  const { prompt, prompt_token_ids: ids } = trace.head;
  const promptText = prompt ?? ids.slice(-MOST_TEXT).map((id) => trace.nameOf(id)).join("");
  const text = promptText + trace.steps.slice(0, index).map((step) => step.text).join("");
  return [...text].slice(-MOST_TEXT).join(""); // whole characters
}

/** @param {Trace} trace @returns {string} its stages: "temperature 0.7 → top-k 40" */
function chainOf(trace) {
  const stages = trace.head.chain.map(stageLabel);
  if (trace.head.params["temperature"] === 0) stages.push("greedy");
  return stages.join(" → ") || "pure sampling";
}

/**
 * @param {Trace} trace @param {number} at a pass
 * @returns {Cells | null} the first of its masked cells in the order of its rule; null where it has fewer than two
 */
export function cellsOf(trace, at) {
  const canvas = canvasOf(trace);
  const seen = (canvas?.order(at) ?? []).filter(({ likely }) => likely.length > 1).slice(0, MOST_CELLS)
    .sort((a, b) => a.position - b.position);
  if (!canvas || seen.length < 2) return null;
  const before = [...canvas.tokens[at - 1] ?? []].map((token) => (token < 0 ? "▢" : trace.nameOf(token)));
  return {
    text: (trace.head.prompt ?? "") + (before.length ? before : Array(canvas.length).fill("▢")).join(""),
    best: seen.map(({ likely }) => visible(trace.nameOf(likely[0] ?? -1))),
    drawn: seen.map(({ token_id: id }) => visible(trace.nameOf(id))),
    p: seen.map(({ likely_logprob: [best = 0] }) => probability(best)),
    second: seen.map(({ likely_logprob: [, second = 0] }) => probability(second)),
    p_drawn: seen.map(({ logprob }) => probability(logprob)),
    entropy: seen.map(({ entropy }) => entropy),
    made: at,
  };
}

/** @param {(Mark | null)[]} marks one for each exercise @returns {string} */
export function summary(marks) {
  /** @type {Mark[]} */
  const kinds = ["right", "right at the second try", "missed"];
  const parts = kinds.flatMap((kind) => {
    const count = marks.filter((mark) => mark === kind).length;
    return count ? [`${count} ${kind}`] : [];
  });
  const open = marks.filter((mark) => mark === null).length;
  if (open) parts.push(`${open} not answered`);
  return `Of ${marks.length}: ${parts.join(", ")}.`;
}

/** @param {Mark | null} mark @param {number} place from 0 @returns {string} the label of a small button */
export const sign = (mark, place) =>
  mark === null ? String(place + 1) : { right: "✓", "right at the second try": "(✓)", missed: "✗" }[mark];
