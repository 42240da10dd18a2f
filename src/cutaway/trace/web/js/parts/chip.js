/**
 * A token of a text, with its surprise as the background, and under a surprising one its ghost: the token that the model
 * wanted.
 */

import { el } from "./dom.js";
import { bits, countFrom1, markLineBreaks, percent, probability, surpriseColour, visible, wordOf } from "../figures/numbers.js";
import { findFavourite } from "../figures/rivals.js";
/** @import { Trace, Step } from "../state/trace.js" */

/**
 * @param {Trace} trace @param {Step} step
 * @returns {string | null} the mark of a forced token, and of the first draft token in a row; the others are underlined only
 */
function markOf({ steps }, { source, index }) {
  if (source === "draft") return steps[index - 1]?.source === "draft" ? null : "d";
  return source === "forced" ? "→" : null;
}

/**
 * @param {Trace} trace @param {Step} step
 * @param {boolean} inherited whether the token is forced only because a branch repeats its parent's; it has no mark
 * @param {boolean} isOwn whether it is of the selected run
 * @returns {HTMLElement}
 */
export function chip(trace, step, inherited, isOwn) {
  const surprise = bits(step.logprob);
  const name = trace.nameOf(step.token_id);
  const title = `step ${countFrom1(step.index)}: ${percent(probability(step.logprob))}, `
    + `${surprise.toFixed(2)} bits, rank ${step.rank}, ${step.source}`;
  const mark = inherited ? null : markOf(trace, step);
  const lead = mark ? "0ch" : leadOf(name); // the mark stands before the spaces
  return el("span", { class: `token ${isOwn ? "chip" : "aside"} ${kindOf(trace, step.token_id)}${step.source === "draft" ? " drafted" : ""}`, title,
    "data-mark": mark, style: { "--surprise": surpriseColour(surprise), "--lead": lead } },
    ...addGhost(name === "" ? visible(name) : markLineBreaks(name), isOwn ? ghost(trace, step) : null));
}

/** @param {string} text @param {HTMLElement | null} under its ghost @returns {(Node | string)[]} the ghost is under the word, which its space may leave behind at a line's end */
function addGhost(text, under) {
  if (!under) return [text];
  const word = text.trimStart();
  return [text.slice(0, text.length - word.length), el("span", { class: "word" }, word, under)];
}

/**
 * @param {Trace} trace @param {Step} step
 * @returns {HTMLElement | null} its word is no text of the document, so that it is not copied with the text; in the order of
 *   the Tab key it is left out, since Enter on its token does the same
 */
function ghost(trace, step) {
  const rival = findFavourite(trace, step);
  if (!rival) return null;
  const label = `the model wanted ${visible(rival.name)}, ${percent(rival.share)}`;
  return el("button", { type: "button", class: "ghost", tabindex: -1, "data-word": wordOf(rival.name), "aria-label": label,
    title: label });
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
