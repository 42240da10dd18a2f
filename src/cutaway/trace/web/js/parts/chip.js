/**
 * A token of a text, with its surprise as the height and colour of an underline.
 */

import { el } from "./dom.js";
import { MOST_BITS, bits, inText, percent, probability, surpriseColour, visible } from "../figures/numbers.js";
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
  return el("span", { class: `token chip ${kindOf(trace, step.token_id)}`, title,
    "data-mark": inherited ? null : MARKS[step.source], style: underline(surprise) },
    name === "" ? visible(name) : inText(name));
}

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

/** @param {number} surprise in bits @returns {Record<string, string>} */
const underline = (surprise) => ({
  "--high": `${1 + Math.min(surprise, MOST_BITS) / 2}px`,
  "--hue": surpriseColour(surprise),
});
