/**
 * Explains in sentences why a text did not end earlier, from the end token's figures. Knows no document.
 */

import { countFrom1, percent, thousands } from "./numbers.js";
import { IN_PLAY, closest, endedByToken, isGreedy, momentsBeforeEnd, outcomePhrase } from "./endings.js";
/** @import { Series, Outcome } from "./series.js" */

/** @param {Series} series @returns {string[]} sentences; none where no end token is on record */
export function whyItWentOn(series) {
  if (!series.outcomes.size) return [];
  return [fates(series), ...(ignoredSentence(series) ?? chances(series)), ...adjustments(series)];
}

/** @param {Series} series @returns {string} how often each outcome occurred */
function fates({ outcomes, length }) {
  const fates = [...outcomes]
    .sort(([, a], [, b]) => b.count - a.count)
    .map(([outcome, { count }], i) => `in ${thousands(count)} ${i ? "it" : "the end token"} ${outcomePhrase(outcome)}`);
  return `Of ${thousands(length)} step${length === 1 ? "" : "s"}, ${fates.join("; ")}.`;
}

/** @param {Series} series @returns {string[]} whether the model, the chain or luck kept the text going */
function chances(series) {
  const { model, final } = series.silence;
  if (!hasLost(series)) return [];
  const figures = `Under the model's own probabilities the chance to come this far without an end was `
    + `${percent(model)}; after the chain it was ${percent(final)}.`;
  return [`${figures} ${verdict(series, model, final)}`];
}

/** @param {Series} series @returns {boolean} whether a draw went against the end token */
const hasLost = ({ outcomes }) => [...outcomes.keys()].some((name) => name !== "drawn" && name !== "forced");

/** @param {Series} series @param {number} model @param {number} final @returns {string} */
function verdict(series, model, final) {
  if (isGreedy(series.trace)) return greedyVerdict(series);
  if (model >= 0.5) return "So the model itself was unlikely to end the text earlier.";
  if (final < 0.5) return "So an earlier end was more likely than not, and luck kept the text going.";
  const stage = worst(series);
  return `So the model was likely to end the text, and the chain${stage ? `, above all ${stage},` : ""} prevented it.`;
}

/** @param {Series} series @returns {string} how near the end token was to being the likeliest */
function greedyVerdict({ trace, moments }) {
  const [nearest] = closest(momentsBeforeEnd(trace, moments));
  const peak = nearest ? `; it was nearest at step ${countFrom1(nearest.index)}, with ${percent(nearest.probability)}` : "";
  return `Temperature 0 takes the likeliest token, which the end token never was${endedByToken(trace) ? " before" : ""}${peak}.`;
}

/** @param {Series} series @returns {string | undefined} the stage that removed most of its probability */
function worst({ outcomes }) {
  const [first] = [...outcomes]
    .filter(([name]) => !IN_PLAY.includes(name))
    .sort(([, a], [, b]) => b.expected - a.expected);
  return first?.[0];
}

/** @param {Series} series @returns {string[]} what bias and penalties did to its logit */
function adjustments({ moments }) {
  const lower = moments.filter((moment) => (moment?.delta ?? 0) < 0).length;
  const higher = moments.filter((moment) => (moment?.delta ?? 0) > 0).length;
  const sentence = (/** @type {number} */ count, /** @type {string} */ verb) =>
    count ? [`Bias, penalties or processors ${verb} its logit in ${thousands(count)} of the steps.`] : [];
  return [...sentence(lower, "lowered"), ...sentence(higher, "raised")];
}

/** @param {Series} series @returns {string[] | null} null: no end token was drawn and ignored */
function ignoredSentence({ trace, outcomes }) {
  const draws = outcomes.get("drawn")?.count;
  if (!draws || !trace.head.params["ignore_eos"]) return null;
  return ["The end token was drawn, but the text went on, since ignore_eos is set."];
}
