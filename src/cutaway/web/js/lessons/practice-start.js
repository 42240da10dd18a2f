/**
 * A step of a run as the start of exercises, and the sums of what was answered.
 *
 * Knows what the server wants to know of a step. Refuses to know what is right: Python does.
 */

import { stageLabel } from "../figures/numbers.js";
/** @import { Trace } from "../state/trace.js" */

/**
 * @typedef {{text: string, token_ids: number[], names: string[], logits: number[], seed: string,
 *   position: number, run: {step: number, log_sum_exp: number, chain: string, own: number,
 *   drawn: string}}} Start
 * @typedef {"right" | "right at the second try" | "missed"} Mark
 */

const MOST_TEXT = 300; // characters; fewer are shown

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
      own: step.own,
      drawn: trace.nameOf(step.own),
    },
  };
}

/** @param {Trace} trace @param {number} index @returns {string} the end of what was written so far */
function textBefore(trace, index) {
  const { prompt, prompt_token_ids: ids } = trace.head;
  const asked = prompt ?? ids.slice(-MOST_TEXT).map((id) => trace.nameOf(id)).join("");
  const text = asked + trace.steps.slice(0, index).map((step) => step.text).join("");
  return [...text].slice(-MOST_TEXT).join(""); // whole characters
}

/** @param {Trace} trace @returns {string} its stages in words */
function chainOf(trace) {
  const stages = trace.head.chain.map(stageLabel);
  if (trace.head.params["temperature"] === 0) stages.push("greedy");
  return stages.join(" → ") || "pure sampling";
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

/** @param {Mark | null} mark @param {number} place from 0 @returns {string} what a small button can hold */
export const sign = (mark, place) =>
  mark === null ? String(place + 1) : { right: "✓", "right at the second try": "(✓)", missed: "✗" }[mark];
