/**
 * One setting on the panel: its name, what it is now, what it means, and what the server said of it.
 *
 * Knows its own elements. Whoever makes it says what a new value does.
 */

import { el } from "../parts/dom.js";
/** @import { Dial } from "./parameters.js" */

/**
 * show      what the setting is now; usual: its default
 * complain  a sentence of the server; null: it has none
 * @typedef {{element: HTMLElement, show: (value: any, usual: any) => void,
 *   complain: (sentence: string | null) => void}} Field
 *
 * @typedef {HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement} Input
 */

/**
 * A slider for most values and a field for all.
 * @param {Dial} dial @param {(text: string | undefined) => void} put undefined: as usual
 * @returns {Field}
 */
export function dialField(dial, put) {
  const { low, high, step, label, name, help } = dial;
  const slider = el("input", { type: "range", min: low, max: high, step, "aria-label": `${label}, slider`,
    oninput: () => put(slider.value) });
  const exact = el("input", { type: "text", inputmode: "decimal", id: `set-${name}`, size: 6,
    autocomplete: "off", oninput: () => put(exact.value) });
  const frame = framed(name, label, help, exact, put, slider);
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
 * A field of text.
 * @param {{name: string, label: string, help: string}} what
 * @param {Input} input
 * @param {(text: string | undefined) => void} put @param {Node[]} more
 * @returns {Field}
 */
export function textField({ name, label, help }, input, put, ...more) {
  input.id = `set-${name}`;
  input.addEventListener("input", () => put(input.value));
  const frame = framed(name, label, help, input, put, ...more);
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
function framed(name, label, help, input, put, ...more) {
  const reset = el("button", { type: "button", class: "reset", onclick: () => {
    put(undefined);
    if (!(input instanceof HTMLSelectElement)) input.value = "";
    input.focus(); // the button goes away
  } });
  const said = el("p", { class: "said-of", id: `said-${name}`, role: "alert" });
  input.setAttribute("aria-describedby", `means-${name} said-${name}`);
  const element = el("div", { class: "field" },
    el("label", { for: `set-${name}` }, label), reset, input, ...more, said,
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
      if (said.textContent !== (sentence ?? "")) said.textContent = sentence;
      input.setAttribute("aria-invalid", String(sentence !== null));
    },
  };
}

/** @param {any} usual @returns {string} */
const brief = (usual) => (usual === undefined || usual === "" ? "none" : String(usual));

/** @param {Input} input @param {string} text */
function writeInto(input, text) {
  // Whoever types is let be: "0." on its way to "0.5" is no other number yet.
  const typing = document.activeElement === input && !(input instanceof HTMLSelectElement);
  if (!typing && input.value !== text) input.value = text;
}
