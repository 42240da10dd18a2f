/**
 * A setting's field: its name, its value, its help, and the server's message about it.
 *
 * Knows its own elements; a callback takes new values.
 */

import { el } from "../parts/dom.js";
/** @import { Dial } from "./parameters.js" */

/**
 * show      the value and the default
 * complain  show the server's message; null: none
 * @typedef {{element: HTMLElement, show: (value: any, usual: any) => void,
 *   complain: (sentence: string | null) => void}} Field
 *
 * @typedef {HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement} Input
 */

/**
 * A slider for the usual values, and a field for any.
 * @param {Dial} dial @param {(text: string | undefined) => void} put undefined: the default
 * @returns {Field}
 */
export function dialField(dial, put) {
  const { low, high, step, label, name, help } = dial;
  const slider = el("input", { type: "range", min: low, max: high, step, "aria-label": `${label}, slider`,
    oninput: () => put(slider.value) });
  const exact = el("input", { type: "text", inputmode: "decimal", id: `set-${name}`, size: 6,
    autocomplete: "off", oninput: () => put(exact.value) });
  const frame = frameField(name, label, help, exact, put, slider);
  return {
    ...frame,
    show(value, usual) {
      frame.mark(value, usual);
      slider.value = String(value ?? usual ?? low);
      writeInto(exact, value === undefined ? "" : String(value));
      exact.placeholder = usual === undefined ? "" : String(usual);
    },
  };
}

/**
 * A text field.
 * @param {{name: string, label: string, help: string}} what
 * @param {Input} input
 * @param {(text: string | undefined) => void} put @param {Node[]} more
 * @returns {Field}
 */
export function textField({ name, label, help }, input, put, ...more) {
  input.id = `set-${name}`;
  input.addEventListener("input", () => put(input.value));
  const frame = frameField(name, label, help, input, put, ...more);
  return {
    ...frame,
    show(value, usual) {
      frame.mark(value, usual);
      writeInto(input, value ?? usual ?? "");
    },
  };
}

/**
 * @param {string} name @param {string} label @param {string} help
 * @param {Input} input @param {(text: string | undefined) => void} put @param {Node[]} more
 */
function frameField(name, label, help, input, put, ...more) {
  const reset = el("button", { type: "button", class: "reset", onclick: () => {
    put(undefined);
    if (!(input instanceof HTMLSelectElement)) input.value = "";
    input.focus(); // since the button is hidden now
  } });
  const message = el("p", { class: "said-of", id: `said-${name}`, role: "alert" });
  input.setAttribute("aria-describedby", `means-${name} said-${name}`);
  const element = el("div", { class: "field" },
    el("label", { for: `set-${name}` }, label), reset, input, ...more, message,
    el("p", { class: "faint", id: `means-${name}` }, help));
  return {
    element,
    /** @param {any} value @param {any} usual */
    mark(value, usual) {
      const other = value !== undefined && value !== "";
      element.classList.toggle("changed", other);
      reset.hidden = !other;
      reset.textContent = `↺ ${brief(usual)}`;
      reset.setAttribute("aria-label", `Reset ${label} to ${brief(usual)}`);
    },
    /** @param {string | null} sentence */
    complain(sentence) {
      if (message.textContent !== (sentence ?? "")) message.textContent = sentence;
      input.setAttribute("aria-invalid", String(sentence !== null));
    },
  };
}

/** @param {any} usual @returns {string} */
const brief = (usual) => (usual === undefined || usual === "" ? "none" : String(usual));

/** @param {Input} input @param {string} text */
function writeInto(input, text) {
  // Do not overwrite a field while somebody types into it: "0." may become "0.5".
  const typing = document.activeElement === input && !(input instanceof HTMLSelectElement);
  if (!typing && input.value !== text) input.value = text;
}
