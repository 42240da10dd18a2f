/**
 * Figures that all views share, and how numbers, tokens and colours are shown.
 *
 * As in cutaway/trace/figures.py: natural logarithms come in, bits and percentages go out. Knows no
 * document.
 */

import { heat, stageNamed, stages } from "./catalogue.js";
/** @import { Candidate, Step } from "../state/trace.js" */

export const LN2 = Math.LN2;

/** The end of the scale of surprise, in bits. */
export const MOST_BITS = 8;

/** @param {number} logprob @returns {number} at most 1, also where rounding has left the logarithm above 0 */
export const probability = (logprob) => Math.exp(Math.min(logprob, 0));

/**
 * @param {Step} step @param {Candidate} candidate
 * @returns {number | null} with which probability it was drawn; at temperature 0, where it has no luck, the likeliest
 *   that is left is taken for certain; null: a stage removed it
 */
export function finalProbability({ sampled_id: sample }, { id, luck, final_logprob: final }) {
  if (final === null) return null;
  return luck === null ? Number(id === sample) : probability(final);
}

/** @param {number} logprob @returns {number} surprise: minus the logarithm to base 2 */
export const bits = (logprob) => Math.max(-logprob, 0) / LN2;

/** @param {number | null | undefined} share @returns {string} with one decimal, or more where the share is small */
export function percent(share) {
  if (share === null || share === undefined || Number.isNaN(share)) return "–";
  if (share >= 0.9995) return "100%";
  if (share >= 0.001 || share === 0) return `${(100 * share).toFixed(1)}%`;
  if (share < 1e-7) return "<0.00001%";
  return `${(100 * share).toFixed(5).replace(/0+$/, "")}%`;
}

/** @param {number | null} share @returns {string} with one decimal, for a column of them */
export const shortPercent = (share) => (share && share < 0.0005 ? "<0.1%" : share && share < 0.001 ? "0.1%" : percent(share));

/** @param {number} share @returns {number} 0.0001 to 1, as 0 to 1 on a logarithmic scale */
export const height = (share) => (share > 0 ? Math.max(1 + Math.log10(share) / 4, 0) : 0);

/** @param {number} index of a step, a pass or a cell, as in data @returns {number} what people call it */
export const countFrom1 = (index) => index + 1;

/** @param {number} rank @returns {string} 1st, 2nd, 3rd, 4th, … 11th, … 21st */
export function ordinal(rank) {
  const teen = Math.floor(rank / 10) % 10 === 1;
  const ending = teen ? "th" : { 1: "st", 2: "nd", 3: "rd" }[rank % 10] ?? "th";
  return `${rank}${ending}`;
}

/** @param {number} value @param {number} [digits] @returns {string} with its sign, also a positive one */
export const withSign = (value, digits = 2) =>
  `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;

const GROUPED = new Intl.NumberFormat("en-US");

/** @param {number} count @returns {string} 1,234,567 */
export const thousands = (count) => GROUPED.format(count);

/** @param {number} bytes @returns {string} */
export function memory(bytes) {
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(1)}\u00a0kB`;
  return bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;
}

/** @typedef {Record<string, any> & {stage: string}} Stage */

/** @param {Stage} stage @returns {string} one letter, so that meaning does not depend on colour */
export const stageLetter = (stage) => stageNamed.get(stage.stage)?.letter ?? stage.stage.slice(0, 1).toUpperCase();

/** @param {Stage} stage @returns {string} "top-k 40", "penalties" */
export function stageLabel(stage) {
  const rule = Object.entries(stage).filter(([name]) => name !== "stage").map(([, value]) => value);
  const name = stage.stage.replaceAll("_", "-");
  return rule.length === 1 && typeof rule[0] === "number" ? `${name} ${short(rule[0])}` : name;
}

/** @param {number} value @returns {string} six significant digits at most */
export const short = (value) => String(Number(value.toPrecision(6)));

// Okabe and Ito's colours, then Tol's: they can be distinguished without colour vision, and each stage has a letter,
// too.
const HUES = [
  "#cc79a7", "#d55e00", "#999999", "#f0e442", "#e69f00", "#56b4e9", "#0072b2",
  "#009e73", "#882255", "#44aa99", "#aa4499", "#117733", "#ddcc77", "#332288",
];

/** @type {Map<string, string>} */
const hues = new Map(stages.map(({ letter }, i) => [letter, HUES[i % HUES.length] ?? ""]));

/** @param {string} letter @returns {string} the colour of a stage */
export const hue = (letter) => hues.get(letter) ?? "#999999";

/** @param {number} surprise in bits @returns {string} its colour, on the scale of 0 to 8 bits */
export const surpriseColour = (surprise) => heat(surprise / MOST_BITS);

/** @param {string} text of a token @returns {string} with its invisible characters, and spaces at its ends, made visible */
export function visible(text) {
  return text === "" ? "∅" : escapeInvisible(text.replaceAll(/^ | $/g, "␣").replace(/^\p{M}/u, "◌$&"));
}

/** @param {string} text of a token @returns {string} as a word: the space before it is left out, where a word follows */
export const wordOf = (text) => visible(text).replace(/^␣(?=\S)/, "");

/** @param {string} text @returns {string} with invisible characters escaped as Python does: "\\n" */
export const escapeInvisible = (text) => text.replaceAll(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}]/gu, escapeCharacter);

/** @param {string} text of a token @returns {string} as a part of a text: a mark for each line break, and the break where the token goes on */
export const markLineBreaks = (text) => text.split(/(\n+)/).map((part, i, all) =>
  (i % 2 ? "↵".repeat(part.length) + (all[i + 1] ? "\n" : "") : escapeInvisible(part))).join("");

/** @param {string} before @param {string} next two tokens @returns {boolean} whether a line ends between them: several line breaks end one */
export const breaksBetween = (before, next) => before.endsWith("\n") && !next.startsWith("\n");

/** @type {Record<string, string>} */
const ESCAPES = { "\n": "\\n", "\t": "\\t", "\r": "\\r" };

/** @param {string} character @returns {string} */
function escapeCharacter(character) {
  const hex = (character.codePointAt(0) ?? 0).toString(16);
  const [letter, digits] = hex.length < 3 ? ["x", 2] : hex.length < 5 ? ["u", 4] : ["U", 8];
  return ESCAPES[character] ?? `\\${letter}${hex.padStart(Number(digits), "0")}`;
}

/** @param {string} text @param {number} maxLength characters @returns {string} */
export function clip(text, maxLength) {
  const characters = [...text];
  return characters.length > maxLength ? `${characters.slice(0, Math.max(maxLength - 1, 1)).join("")}…` : text;
}
