/**
 * The prompt before a text. A chat template's prompt, and a long one, is folded to one button.
 */

import { kindOf, leadOf } from "./chip.js";
import { el, replace } from "./dom.js";
import { breaksBetween, markLineBreaks, thousands, visible } from "../figures/numbers.js";
/** @import { Trace } from "../state/trace.js" */

const LONG = { characters: 400, lines: 5 }; // a longer prompt is folded

/** @param {Trace} trace @returns {boolean} */
function isFolded(trace) {
  const ids = trace.head.prompt_token_ids;
  const text = trace.textOf(ids);
  const isChat = ids.slice(1).some((id) => kindOf(trace, id) === "special"); // the first may be the text's beginning
  return isChat || text.length > LONG.characters || text.split("\n").length > LONG.lines;
}

/**
 * @param {Trace} trace
 * @returns {HTMLElement} without colours, since its surprise is not recorded
 */
export function prompt(trace) {
  const text = el("span", { class: "token prompt", title: "the prompt" });
  const show = (/** @type {boolean} */ open) => replace(text, ...(open ? pieces(trace) : []));
  const folded = isFolded(trace);
  show(!folded);
  return el("span", {}, folded && fold(trace, show), text);
}

/** @param {Trace} trace @returns {HTMLElement[]} an element for each token */
export const promptTokens = (trace) => trace.head.prompt_token_ids.map((id) =>
  el("span", { class: `token prompt place ${kindOf(trace, id)}`, style: { "--lead": leadOf(trace.nameOf(id)) } }, markLineBreaks(trace.nameOf(id)) || visible("")));

/** @param {Trace} trace @param {HTMLElement[]} tokens of its prompt @returns {HTMLElement[]} with line breaks in between */
export function insertBreaks(trace, tokens) {
  const names = trace.head.prompt_token_ids.map((id) => trace.nameOf(id));
  return tokens.flatMap((token, i) => (breaksBetween(names[i - 1] ?? "", names[i] ?? "") ? [el("br"), token] : [token]));
}

/**
 * @param {Trace} trace @param {(open: boolean) => void} show
 * @returns {HTMLElement} the button that stands for the prompt
 */
function fold(trace, show) {
  const count = thousands(trace.head.prompt_token_ids.length);
  const button = el("button", { type: "button", class: "fold", "aria-expanded": "false",
    title: "what the model was given before this text", onclick: () => {
      const open = button.getAttribute("aria-expanded") !== "true";
      button.setAttribute("aria-expanded", String(open));
      show(open);
    } }, `prompt · ${count} tokens`);
  return button;
}

/** @param {Trace} trace @returns {(Node | string)[]} text, with the names of special tokens in between */
function pieces(trace) {
  const ids = trace.head.prompt_token_ids;
  /** @type {(Node | string)[]} */
  const nodes = [];
  let from = 0;
  ids.forEach((id, i) => {
    if (kindOf(trace, id) !== "special") return;
    nodes.push(trace.textOf(ids.slice(from, i)), el("span", { class: "special" }, trace.nameOf(id)));
    from = i + 1;
  });
  return [...nodes, trace.textOf(ids.slice(from))];
}
