/**
 * The settings of a request: which there are, how a field's text becomes a value, and styles.
 *
 * Knows the ranges of sliders. Which values are allowed, the server knows.
 */

import { isAdjusting, labelOf, numbersOf, styles } from "../figures/catalogue.js";
/** @import { Param, Style } from "../figures/catalogue.js" */

/**
 * low, high     of the slider; the field beside it takes any value
 * @typedef {Pick<Param, "name" | "help" | "low" | "high" | "step"> & {label: string}} Dial
 */

/** @param {Param} param @returns {Dial} */
const dial = (param) => ({ ...param, label: labelOf(param.name) });

/** Temperature and the filters. */
export const SAMPLING = numbersOf(({ name }) => !isAdjusting(name)).map(dial);

/** Penalties and other adjustments of single logits. */
export const REPETITION = numbersOf(({ name }) => isAdjusting(name)).map(dial);

/** @type {Dial[]} */
export const LENGTH = [
  { name: "max_tokens", label: "max_tokens", low: 1, high: 1024, step: 1,
    help: "The greatest number of new tokens. An end token ends the text earlier." },
];

/** The names of all fields: a refusal of the server is shown beside the field that it names. */
export const FIELDS = [
  ...[...SAMPLING, ...REPETITION, ...LENGTH].map(({ name }) => name), "seed", "stop", "preset", "chain",
];

/** @param {Record<string, any>} values @returns {Style | null} the style with these values */
export const styleOf = (values) => styles.find(({ settings }) =>
  Object.entries(settings).every(([name, value]) => values[name] === value)) ?? null;

/** @param {Record<string, any>} settings @returns {string} "temperature 0.7, top-p 0.9" */
export const describeSettings = (settings) =>
  Object.entries(settings).map(([name, value]) => `${labelOf(name)} ${value}`).join(", ");

/**
 * The settings after a change, without those that equal the default.
 * @param {Record<string, any>} settings @param {Record<string, any>} defaults
 * @param {Record<string, any>} change
 * @returns {Record<string, any>}
 */
export function changeSettings(settings, defaults, change) {
  const all = { ...settings, ...change };
  return Object.fromEntries(Object.entries(all).filter(([name, value]) =>
    value !== undefined && JSON.stringify(value) !== JSON.stringify(defaults[name])));
}

/**
 * @param {string} text of a field
 * @returns {number | string | undefined} a number; undefined: the field is empty; a string that is not a number is
 *   left to the server to refuse
 */
export function valueOf(text) {
  const plain = text.trim().replace("−", "-");
  if (plain === "") return undefined;
  return /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(plain) ? Number(plain) : text.trim();
}

/** @type {Record<string, string>} */
const ESCAPES = { n: "\n", t: "\t", "\\": "\\" };

/** @param {string} text a stop string per line, with \n for a line break @returns {string[]} */
export const stopsOf = (text) => text.split("\n").filter((line) => line !== "")
  .map((line) => line.replaceAll(/\\([nt\\])/g, (_, letter) => ESCAPES[letter] ?? ""));

/** @param {string[]} stops @returns {string} the field's text for them */
export const stopsText = (stops) => stops
  .map((stop) => stop.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\t", "\\t"))
  .join("\n");

/** @param {string} text names of stages @returns {string[] | undefined} undefined: the preset's order */
export const chainOf = (text) => (text.trim() ? text.trim().split(/[\s,→]+/) : undefined);

/** @param {any} value of a setting @returns {string} */
export function valueText(value) {
  if (Array.isArray(value)) return value.length ? value.map((v) => JSON.stringify(v)).join(" ") : "none";
  return value === "" || value === undefined || value === null ? "–" : String(value);
}
