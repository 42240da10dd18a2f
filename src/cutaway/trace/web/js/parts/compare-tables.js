/**
 * The differences of two runs as sentences and tables. Knows the result of diff.js, and no state.
 */

import { el, headRow, token } from "./dom.js";
import { countFrom1, percent, stageLabel } from "../figures/numbers.js";
import { SHORTEST_RUN } from "../figures/common-runs.js";
/** @import { Difference, Cost, Continuation } from "../figures/diff.js" */
/** @import { Child } from "./dom.js" */

/** @param {Difference} difference @returns {string} as in `cutaway trace diff` */
export function sentences(difference) {
  const prompts = difference.samePrompt ? "The prompts are equal" : "The prompts differ";
  const at = difference.logitsDifferAt;
  const logits = at === null ? "the logits up to there are bit-identical"
    : `the logits differ from step ${countFrom1(at)} on`;
  return `${prompts}. ${beginningSentence(difference)}; ${logits}. ${commonSentence(difference)}`.trim();
}

/** @param {Difference} found @returns {string} */
function beginningSentence({ common, divergence }) {
  if (common < 2) return common ? "The first token is equal" : "No token is equal";
  return `${divergence ? "The first" : "All"} ${common} tokens are equal`;
}

/** @param {Difference} found @returns {string} */
function commonSentence({ divergence, commonRuns }) {
  if (!divergence) return "";
  if (!commonRuns.length) return `After that no ${SHORTEST_RUN} tokens in a row are equal.`;
  const tokens = commonRuns.reduce((sum, { length }) => sum + length, 0);
  const places = commonRuns.length === 1 ? "in one run" : `in ${commonRuns.length} runs`;
  return `After that ${tokens} more tokens are equal, ${places}.`;
}

/** @param {Difference} found @returns {HTMLElement} */
export function figuresTable({ a, b, aAfter, bAfter, divergence }) {
  /** @type {[string, Child, Child][]} */
  const rows = [
    ["tokens", a.tokens, b.tokens],
    ["surprise, bits", a.bits.toFixed(1), b.bits.toFixed(1)],
    ["bits per token", bitsPerToken(a), bitsPerToken(b)],
  ];
  if (divergence) {
    rows.push(
      ["bits per token from the divergence on", bitsPerToken(aAfter), bitsPerToken(bAfter)],
      [`token at step ${countFrom1(divergence.index)}`, next(divergence.a), next(divergence.b)],
      ["its probability in A", percent(divergence.a?.underA), percent(divergence.b?.underA)],
      ["its probability in B", percent(divergence.a?.underB), percent(divergence.b?.underB)],
    );
  }
  return table(["", "A", "B"], rows, "totals");
}

/** @param {Cost} cost @returns {string} */
const bitsPerToken = ({ tokens, bits }) => (tokens ? (bits / tokens).toFixed(2) : "–");

/** @param {Continuation | null} text @returns {Child} */
const next = (text) => (text ? token(text.token) : el("span", { class: "faint" }, "the text has ended"));

/** @param {Difference} found @returns {HTMLElement} the settings that differ */
export function changesTable({ changes, samePrompt }) {
  const rows = changes
    .filter(({ name }) => !(samePrompt && name === "prompt")) // the request of a fork has its ids, not its text
    .map(({ name, a, b }) => /** @type {[string, Child, Child]} */ ([name, valueText(name, a), valueText(name, b)]));
  if (!rows.length) return el("p", { class: "faint" }, "The settings are equal.");
  return table(["setting", "A", "B"], rows, "settings");
}

/** @param {string} name @param {any} value @returns {string} short enough for a cell */
function valueText(name, value) {
  if (value === null) return "–";
  if (name === "chain") return value.map(stageLabel).join(" → ") || "none";
  if (name === "prompt_token_ids" || name === "forced") return `${value.length} tokens`;
  if (name === "parent") return `step ${countFrom1(value.step)} of ${value.trace.slice(0, 12)}…`;
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** @param {string[]} names @param {[string, Child, Child][]} rows @param {string} kind
 *  @returns {HTMLElement} */
function table(names, rows, kind) {
  return el("table", { class: kind }, headRow(...names),
    el("tbody", {}, ...rows.map(([name, a, b]) =>
      el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, a), el("td", {}, b)))));
}
