/**
 * The prompt before a text: folded where it is long, special tokens by name.
 */

import { kindOf } from "./chip.js";
import { el, replace } from "./dom.js";
import { inText, thousands, visible } from "../figures/numbers.js";
/** @import { Trace } from "../state/trace.js" */

const LONG = 100; // tokens from which on it is folded
const TAIL = 40; // of which one still sees these

/**
 * @param {Trace} trace
 * @param {() => void} turned what follows when somebody folds or unfolds it
 * @returns {HTMLElement} no surprise of it is on record
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

/** @param {Trace} trace @returns {HTMLElement[]} each token by itself */
export const promptTokens = (trace) => trace.head.prompt_token_ids.map((id) =>
  el("span", { class: `token prompt place ${kindOf(trace, id)}` }, inText(trace.nameOf(id)) || visible("")));

/**
 * @param {Trace} trace @param {HTMLElement} text @param {() => void} turned
 * @returns {HTMLElement} the button that shows all of it
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

/** @param {Trace} trace @param {number[]} ids @returns {(Node | string)[]} text, and names in between */
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
