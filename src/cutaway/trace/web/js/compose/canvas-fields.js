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

/** @typedef {Record<string, string>} Usual the model's own rule; all settings that are not in it have those of the rule */

/**
 * @param {() => Denoise} now @param {() => Usual} usual @param {(denoise: Denoise) => void} put
 * @returns {Map<string, Field>} by the setting's name
 */
export function canvasFields(now, usual, put) {
  return new Map(canvasSettings.map((setting) => {
    const { name, choices } = setting;
    const input = choices.length ? el("select", {}, ...choices.map((choice) => el("option", { value: choice }, choice)))
      : el("input", { type: "text", inputmode: "decimal", autocomplete: "off", size: 6, placeholder: "of the rule" });
    const spec = { ...setting, label: labelOf(name) };
    return [name, textField(spec, input, (text) => put(changeSetting(now(), usual(), name, valueOf(text ?? ""))))];
  }));
}

/** @param {Denoise} denoise @param {Usual} usual @param {string} name @param {any} value @returns {Denoise} */
function changeSetting(denoise, usual, name, value) {
  const all = Object.entries({ ...denoise, [name]: value });
  const overrides = all.filter(([key, setting]) => setting !== undefined && setting !== (usual[key] ?? ""));
  return overrides.length ? Object.fromEntries(overrides) : undefined;
}
