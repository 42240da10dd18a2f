/**
 * The settings of a request: which there are, how a field's text becomes a value, and styles.
 *
 * Knows the ranges of sliders. Which values are allowed, the server knows.
 */

import { isAdjusting, labelOf, numbersOf, presets, stages, styles } from "../figures/catalogue.js";
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

/**
 * choices   the texts that it may have; none: any text
 * lines     of its field
 * read      the field's text as a value; undefined: the default
 * write     the text of a value
 * @typedef {{name: string, label: string, help: string, choices?: string[], lines?: number,
 *   read: (text: string) => any, write: (value: any) => string}} TextSetting
 */

/** @type {TextSetting[]} */
export const ORDER = [
  { name: "stop", label: "stop strings", lines: 2, read: linesOf, write: linesText,
    help: "The text ends before any of these; one per line, \\n for a line break." },
  { name: "preset", label: "preset", choices: Object.keys(presets), read: String, write: String,
    help: "The order of the sampling stages, as in another engine." },
  { name: "chain", label: "chain", lines: 2, read: chainOf, write: (names) => names.join(" "),
    help: `The order of the sampling stages, instead of the preset's: ${stages.map(({ name }) => name).join(", ")}.` },
];

/** How a text is computed, with the same tokens. @type {TextSetting[]} */
export const COMPUTING = [
  { name: "kv_cache", label: "KV cache", choices: ["on", "off"], read: (text) => text === "on", write: (on) => (on ? "on" : "off"),
    help: "Off: every step computes all tokens again. The text is the same; Timelines show what each step costs." },
  { name: "speculate", label: "drafts", choices: ["off", "ngram", "jacobi"], read: String, write: String,
    help: "Guesses of several tokens, which the model checks in one pass: ngram guesses what followed earlier in the text, "
      + "jacobi what the model drew ahead. The text is the same; those that were right are underlined." },
];

/** What a text must be: at each step the tokens that do not fit are removed. @type {TextSetting[]} */
export const FORM = [
  { name: "json_schema", label: "JSON schema", lines: 3, read: schemaOf, write: schemaText,
    help: "The text is JSON of this schema; true: any JSON." },
  { name: "regex", label: "regex", lines: 1, read: textOf, write: String, help: "This regular expression matches the text as a whole." },
  { name: "choice", label: "choice", lines: 2, read: linesOf, write: linesText, help: "The text is one of these; one per line." },
];

/** The names of all fields: a refusal of the server is shown beside the field that it names. */
export const FIELDS = [
  ...[...SAMPLING, ...REPETITION, ...LENGTH].map(({ name }) => name), "seed", "stop", "preset", "chain",
  "kv_cache", "speculate", "json_schema", "regex", "choice",
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

/** @param {string} text a string per line, with \n for a line break @returns {string[]} */
export function linesOf(text) {
  return text.split("\n").filter((line) => line !== "")
    .map((line) => line.replaceAll(/\\([nt\\])/g, (_, letter) => ESCAPES[letter] ?? ""));
}

/** @param {string[]} strings @returns {string} the field's text for them */
export function linesText(strings) {
  return strings.map((string) => string.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\t", "\\t")).join("\n");
}

/** @param {string} text names of stages @returns {string[] | undefined} undefined: the preset's order */
export function chainOf(text) {
  return text.trim() ? text.trim().split(/[\s,→]+/) : undefined;
}

/** @param {string} text @returns {string | undefined} */
function textOf(text) {
  return text || undefined;
}

/** @param {string} text @returns {any} a text that is no JSON is left to the server to refuse */
export function schemaOf(text) {
  if (!text.trim()) return undefined;
  return jsonError(text) ? text : JSON.parse(text);
}

/** @param {string} text @returns {string} what keeps it from being JSON, in the browser's words; "" where nothing does */
export function jsonError(text) {
  try {
    JSON.parse(text);
    return "";
  } catch (error) {
    return /** @type {SyntaxError} */ (error).message;
  }
}

/** @param {any} schema @returns {string} */
export function schemaText(schema) {
  return typeof schema === "string" ? schema : JSON.stringify(schema);
}

/** @param {any} value of a setting @returns {string} */
export function valueText(value) {
  if (Array.isArray(value)) return value.length ? value.map((v) => JSON.stringify(v)).join(" ") : "none";
  return value === "" || value === undefined || value === null ? "–" : String(value);
}
