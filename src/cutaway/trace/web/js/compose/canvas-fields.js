/**
 * The settings of a canvas: a rule by name, and what goes before it. They are one setting of the request.
 *
 * Knows fields and the setting that they make. Refuses to know what a rule does: Python says it.
 */

import { canvasSettings, labelOf } from "../figures/catalogue.js";
import { el } from "../parts/dom.js";
import { textField } from "./field.js";
import { valueOf } from "./parameters.js";
/** @import { Field } from "./field.js" */

/** @typedef {Record<string, any> | undefined} Denoise undefined: as usual */

/** What a rule is where none is named. */
const USUAL = { rule: "confidence", noise: "reuse" };

/**
 * @param {() => Denoise} now @param {(denoise: Denoise) => void} put
 * @returns {Map<string, Field>} by the setting's name
 */
export function canvasFields(now, put) {
  return new Map(canvasSettings.map((setting) => {
    const { name, choices } = setting;
    const input = choices.length ? el("select", {}, ...choices.map((one) => el("option", { value: one }, one)))
      : el("input", { type: "text", inputmode: "decimal", autocomplete: "off", size: 6, placeholder: "rule’s" });
    const what = { ...setting, label: labelOf(name) };
    return [name, textField(what, input, (text) => put(changed(now(), name, valueOf(text ?? ""))))];
  }));
}

/** @param {string} name @returns {any} what a field says where nothing was set */
export const usual = (name) => USUAL[/** @type {keyof typeof USUAL} */ (name)] ?? "";

/** @param {Denoise} denoise @param {string} name @param {any} value @returns {Denoise} */
function changed(denoise, name, value) {
  const all = Object.entries({ ...denoise, [name]: value });
  const kept = all.filter(([key, one]) => one !== undefined && one !== usual(key));
  return kept.length ? Object.fromEntries(kept) : undefined;
}
