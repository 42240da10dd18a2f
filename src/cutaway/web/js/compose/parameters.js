/**
 * The settings of a request: what each means, what a field's text stands for, and styles of writing.
 *
 * Knows names, meanings and how far a slider goes. Refuses to know which values are allowed: the
 * server says that.
 */

/**
 * @typedef {{name: string, label: string, meaning: string, low: number, high: number, step: number}} Dial
 *
 * low, high     of the slider; the field beside it takes what lies beyond
 */

/** @type {Dial[]} */
export const CHOOSING = [
  { name: "temperature", label: "temperature", low: 0, high: 2, step: 0.05,
    meaning: "Divides the logits: below 1 the likely gain, above 1 the unlikely. 0 is greedy." },
  { name: "top_p", label: "top-p", low: 0.05, high: 1, step: 0.05,
    meaning: "Keeps the likeliest tokens that reach this share together. 1 keeps all." },
  { name: "top_k", label: "top-k", low: 0, high: 200, step: 1,
    meaning: "Keeps this many of the likeliest. 0 keeps all." },
  { name: "min_p", label: "min-p", low: 0, high: 0.5, step: 0.01,
    meaning: "Keeps those at least this many times as likely as the best. 0 keeps all." },
];

/** @type {Dial[]} */
export const REPETITION = [
  { name: "repetition_penalty", label: "repetition", low: 0.8, high: 2, step: 0.05,
    meaning: "Divides the positive logits of tokens seen before, and multiplies the negative. 1 is off." },
  { name: "presence_penalty", label: "presence", low: -2, high: 2, step: 0.1,
    meaning: "Is subtracted once from the logit of a token that was written before." },
  { name: "frequency_penalty", label: "frequency", low: -2, high: 2, step: 0.1,
    meaning: "Is subtracted each time that the token was written." },
];

/** @type {Dial[]} */
export const LENGTH = [
  { name: "max_tokens", label: "max_tokens", low: 1, high: 1024, step: 1,
    meaning: "At most this many new tokens. Where the end token comes before, the text ends there." },
];

/** The fields that the panel has: what the server says of them stands beside them. */
export const FIELDS = [
  ...[...CHOOSING, ...REPETITION, ...LENGTH].map((dial) => dial.name), "seed", "stop", "preset",
];

/** @typedef {{name: string, temperature: number, top_p: number, meaning: string}} Style */
/** @type {Style[]} pairs of settings, as one would ask for a voice */
export const STYLES = [
  { name: "greedy", temperature: 0, top_p: 1,
    meaning: "Always the likeliest token: the same text every time, and soon the same words again." },
  { name: "careful", temperature: 0.3, top_p: 0.8,
    meaning: "Close to the likeliest: for facts and code." },
  { name: "balanced", temperature: 0.7, top_p: 0.9,
    meaning: "Sharper than the model, without its long tail: for most answers." },
  { name: "pure", temperature: 1, top_p: 1,
    meaning: "The model's own probabilities, nothing removed: what it has learnt, tail and all." },
  { name: "wild", temperature: 1.4, top_p: 0.98,
    meaning: "Flatter than the model: surprising words, and before long no sense." },
];

/** @param {Record<string, any>} values in force @returns {Style | null} theirs, if it is one of ours */
export const styleOf = (values) =>
  STYLES.find((s) => s.temperature === values["temperature"] && s.top_p === values["top_p"]) ?? null;

/**
 * The settings with another value; what is as usual is not among them.
 * @param {Record<string, any>} settings @param {Record<string, any>} defaults
 * @param {Record<string, any>} change
 * @returns {Record<string, any>}
 */
export function changed(settings, defaults, change) {
  const all = { ...settings, ...change };
  return Object.fromEntries(Object.entries(all).filter(([name, value]) =>
    value !== undefined && JSON.stringify(value) !== JSON.stringify(defaults[name])));
}

/**
 * @param {string} text of a field
 * @returns {number | string | undefined} a number; undefined: nothing is asked for; what is no number
 *   goes to the server as it is, which says what is wrong
 */
export function valueOf(text) {
  const plain = text.trim().replace("−", "-");
  if (plain === "") return undefined;
  return /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(plain) ? Number(plain) : text.trim();
}

/** @type {Record<string, string>} */
const ESCAPES = { n: "\n", t: "\t", "\\": "\\" };

/** @param {string} text a stop string a line, \n for a line's end @returns {string[]} */
export const stopsOf = (text) => text.split("\n").filter((line) => line !== "")
  .map((line) => line.replaceAll(/\\([nt\\])/g, (_, letter) => ESCAPES[letter] ?? ""));

/** @param {string[]} stops @returns {string} the field's text for them */
export const stopsText = (stops) => stops
  .map((stop) => stop.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\t", "\\t"))
  .join("\n");

/** @param {any} value of a setting @returns {string} */
export function told(value) {
  if (Array.isArray(value)) return value.length ? value.map((v) => JSON.stringify(v)).join(" ") : "none";
  return value === "" || value === undefined || value === null ? "–" : String(value);
}
