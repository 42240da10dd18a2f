/**
 * The settings of a canvas: the name of a rule, and values that override the rule's own. Together they are one setting
 * of the request. What a rule does is Python's business.
 */

import { canvasSettings, labelOf } from "../figures/catalogue.js";
import { el } from "../parts/dom.js";
import { textField } from "./field.js";
import { valueOf } from "./parameters.js";
/** @import { Field } from "./field.js" */

/** @typedef {Record<string, any> | undefined} Denoise undefined: the default */

/** The defaults; all other settings have those of the rule. */
const USUAL = { rule: "confidence", noise: "reuse" };

/**
 * @param {() => Denoise} now @param {(denoise: Denoise) => void} put
 * @returns {Map<string, Field>} by the setting's name
 */
export function canvasFields(now, put) {
  return new Map(canvasSettings.map((setting) => {
    const { name, choices } = setting;
    const input = choices.length ? el("select", {}, ...choices.map((choice) => el("option", { value: choice }, choice)))
      : el("input", { type: "text", inputmode: "decimal", autocomplete: "off", size: 6, placeholder: "of the rule" });
    const spec = { ...setting, label: labelOf(name) };
    return [name, textField(spec, input, (text) => put(changeSetting(now(), name, valueOf(text ?? ""))))];
  }));
}

/** @param {string} name @returns {any} the default that a field shows */
export const usual = (name) => USUAL[/** @type {keyof typeof USUAL} */ (name)] ?? "";

/** @param {Denoise} denoise @param {string} name @param {any} value @returns {Denoise} */
function changeSetting(denoise, name, value) {
  const all = Object.entries({ ...denoise, [name]: value });
  const overrides = all.filter(([key, setting]) => setting !== undefined && setting !== usual(key));
  return overrides.length ? Object.fromEntries(overrides) : undefined;
}
