/**
 * A token of a text, underlined by its surprise: on the scale of numbers.js, as height and colour.
 */

import { el } from "./dom.js";
import { MOST_BITS, bits, inText, percent, probability, surpriseColour, visible } from "../figures/numbers.js";
/** @import { Trace, Step } from "../state/trace.js" */

/** @type {Record<string, string>} marks of tokens that were not simply drawn */
const MARKS = { forced: "→", draft: "d" };

/**
 * @param {Trace} trace @param {Step} step
 * @param {boolean} inherited whether a branch repeats the token of its parent: forced, but not changed here
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
 * @returns {"special" | "bytes" | ""} whether it adds nothing to the text; or part of a character
 */
export function kindOf(trace, id) {
  const token = trace.tokens.get(id);
  if (!token || token.name !== null) return "special";
  const escaped = trace.nameOf(id).startsWith("\\x") && token.bytes[0] !== 0x5c; // no real backslash
  return escaped ? "bytes" : "";
}

/** @param {number} surprise in bits @returns {Record<string, string>} */
const underline = (surprise) => ({
  "--high": `${1 + Math.min(surprise, MOST_BITS) / 2}px`,
  "--hue": surpriseColour(surprise),
});
