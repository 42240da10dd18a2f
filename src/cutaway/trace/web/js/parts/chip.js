/**
 * A token of a text, with its surprise as the background.
 */

import { el } from "./dom.js";
import { bits, markLineBreaks, percent, probability, surpriseColour, visible } from "../figures/numbers.js";
/** @import { Trace, Step } from "../state/trace.js" */

/** @type {Record<string, string>} marks of forced tokens and draft tokens */
const MARKS = { forced: "→", draft: "d" };

/**
 * @param {Trace} trace @param {Step} step
 * @param {boolean} inherited whether the token is forced only because a branch repeats its parent's; it has no mark
 * @returns {HTMLElement}
 */
export function chip(trace, step, inherited) {
  const surprise = bits(step.logprob);
  const name = trace.nameOf(step.token_id);
  const title = `step ${step.index}: ${percent(probability(step.logprob))}, `
    + `${surprise.toFixed(2)} bits, rank ${step.rank}, ${step.source}`;
  const mark = inherited ? null : MARKS[step.source];
  const lead = mark ? "0ch" : leadOf(name); // the mark stands before the spaces
  return el("span", { class: `token chip ${kindOf(trace, step.token_id)}`, title,
    "data-mark": mark, style: { "--surprise": surpriseColour(surprise), "--lead": lead } },
    name === "" ? visible(name) : markLineBreaks(name));
}

/** @param {string} name @returns {string} how far its background begins after its leading spaces, which stay behind where a line ends */
export const leadOf = (name) => `${/^( *)\S/.exec(name)?.[1]?.length ?? 0}ch`;

/**
 * @param {Trace} trace @param {number} id
 * @returns {"special" | "bytes" | ""} "special": adds nothing to the text; "bytes": a part of a character
 */
export function kindOf(trace, id) {
  const token = trace.tokens.get(id);
  if (!token || token.name !== null) return "special";
  const escaped = trace.nameOf(id).startsWith("\\x") && token.bytes[0] !== 0x5c; // not a literal backslash
  return escaped ? "bytes" : "";
}
