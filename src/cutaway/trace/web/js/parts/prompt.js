/**
 * The prompt before a text: folded where it is long, with the names of special tokens.
 */

import { kindOf } from "./chip.js";
import { el, replace } from "./dom.js";
import { inText, thousands, visible } from "../figures/numbers.js";
/** @import { Trace } from "../state/trace.js" */

const LONG = 100; // tokens: a longer prompt is folded
const TAIL = 40; // tokens that a folded prompt shows

/**
 * @param {Trace} trace
 * @param {() => void} turned called when the prompt is folded or unfolded
 * @returns {HTMLElement} without underlines, since its surprise is not recorded
 */
export function prompt(trace, turned) {
  const ids = trace.head.prompt_token_ids;
  const long = ids.length > LONG;
  const text = el("span", {}, ...pieces(trace, long ? ids.slice(-TAIL) : ids));
  const made = el("span", { class: "token prompt", title: "the prompt" });
  if (long) made.append(fold(trace, text, turned));
  made.append(text);
  return made;
}

/** @param {Trace} trace @returns {HTMLElement[]} an element for each token */
export const promptTokens = (trace) => trace.head.prompt_token_ids.map((id) =>
  el("span", { class: `token prompt place ${kindOf(trace, id)}` }, inText(trace.nameOf(id)) || visible("")));

/**
 * @param {Trace} trace @param {HTMLElement} text @param {() => void} turned
 * @returns {HTMLElement} the button that shows the whole prompt
 */
function fold(trace, text, turned) {
  const ids = trace.head.prompt_token_ids;
  const folded = `show all ${thousands(ids.length)} tokens of the prompt`;
  const button = el("button", { class: "fold", "aria-expanded": "false", onclick: () => {
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    button.textContent = open ? "fold the prompt" : folded;
    replace(text, ...pieces(trace, open ? ids : ids.slice(-TAIL)));
    turned();
  } }, folded);
  return button;
}

/** @param {Trace} trace @param {number[]} ids @returns {(Node | string)[]} text, with the names of special tokens in between */
function pieces(trace, ids) {
  /** @type {(Node | string)[]} */
  const made = [];
  let from = 0;
  ids.forEach((id, i) => {
    if (kindOf(trace, id) !== "special") return;
    made.push(trace.textOf(ids.slice(from, i)), el("span", { class: "special" }, trace.nameOf(id)));
    from = i + 1;
  });
  return [...made, trace.textOf(ids.slice(from))];
}
