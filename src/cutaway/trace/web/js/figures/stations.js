/**
 * The stations from the text so far to the next token, with the figures that arise there, in words; and every figure of
 * a step. Knows the record, and the step's inside where it is known already. Knows no document.
 */

import { layerName } from "./inside.js";
import { countFrom1, memory, percent, thousands, visible, withSign } from "./numbers.js";
import { PHASES } from "./series.js";
import { stepView } from "./step-view.js";
/** @import { Trace, Step, Pass } from "../state/trace.js" */
/** @import { StepInside } from "../state/step-inside.js" */
/** @import { StepView, CandidateView } from "./step-view.js" */

/**
 * panel: that shows more of it. caption: what happens there.
 * @typedef {{id: string, name: string, panel: string, caption: string, figures: string[]}} Station
 */

/** Words of a figure, in which a token is an object. @typedef {(string | {token: string})[]} Words */

/** @param {unknown} condition @param {string[]} figures @returns {string[]} none where there is nothing to say */
const figuresIf = (condition, ...figures) => (condition ? figures : []);

/**
 * @param {Trace} trace @param {Step | undefined} step undefined: none has come yet
 * @param {StepInside | null} inside of the step @param {Pass | undefined} [pass] of a canvas, the one that is shown
 * @returns {Station[]} in the order in which a token passes them
 */
export function stations(trace, step, inside, pass) {
  const view = step ? stepView(trace, step) : null;
  const canvas = trace.head.decoder !== undefined;
  const last = canvas ? null : lastId(trace, step);
  return [
    canvas ? cells(trace, pass) : context(trace, last, view),
    embedding(trace, last), layers(trace, view, inside, pass), logits(trace, view), chain(trace, view), luck(trace, view),
    canvas ? reveal(pass, view) : token(view),
  ];
}

/** @param {Trace} trace @param {Step | undefined} step @returns {number | null} the token before the step's */
function lastId(trace, step) {
  const { prompt_token_ids: prompt } = trace.head;
  return (step?.index ? trace.steps[step.index - 1]?.token_id : prompt.at(-1)) ?? null;
}

/** @param {Trace} trace @param {number | null} last @param {StepView | null} view @returns {Station} */
const context = (trace, last, view) => ({
  id: "tokens", name: "tokens", panel: "without", caption: "The text so far, as tokens: words or pieces of words.",
  figures: [
    `${thousands(view?.position ?? trace.head.prompt_token_ids.length)} so far`,
    ...figuresIf(last !== null, `the last is ${visible(trace.nameOf(last ?? 0))}`),
    ...figuresIf(view, `KV cache ${memory(view?.kvBytes ?? 0)}`),
  ],
});

/** @param {Trace} trace @param {Pass | undefined} pass @returns {Station} the canvas before the token is revealed */
const cells = (trace, pass) => {
  const isNoise = trace.head.decoder?.rule["start"] === "noise";
  return {
    id: "tokens", name: "canvas", panel: "canvas",
    caption: `A row of cells; those without a token hold ${isNoise ? "noise, a random one" : "a mask"}.`,
    figures: [`${thousands(trace.places)} cells`,
      ...figuresIf(pass, `${thousands(pass?.cells.filter(({ was }) => was === null).length ?? 0)} ${isNoise ? "noise" : "masked"}`)],
  };
};

/** @param {Trace} trace @param {number | null} id @returns {Station} */
function embedding({ head }, id) {
  const width = head.sizes?.hidden;
  return {
    id: "embedding", name: "embedding", panel: "inside",
    caption: `Each token becomes ${width ? `a row of ${thousands(width)} numbers` : "a row of numbers"}.`,
    figures: figuresIf(id !== null, `token ${thousands(id ?? 0)} of ${thousands(head.vocab_size)}`),
  };
}

/**
 * @param {Trace} trace @param {StepView | null} view @param {StepInside | null} inside @param {Pass | undefined} pass @returns {Station}
 */
function layers({ head }, view, inside, pass) {
  const { sizes } = head;
  const settled = inside?.value("lens_settled") ?? null; // a row of the lens: 0 is before the first layer
  const ms = pass?.ms["run"] ?? view?.ms["run"];
  const isBidirectional = ["bidirectional", "canvas"].includes(String(head.decoder?.attention));
  return {
    id: "layers", name: sizes ? `${thousands(sizes.layers)} layers` : "layers", panel: "inside",
    caption: `Attention reads ${isBidirectional ? "the other tokens" : "the tokens before"}; the MLP works on each token alone.`,
    figures: [
      ...figuresIf(sizes, `${sizes?.heads} heads`, `MLP of ${thousands(sizes?.mlp ?? 0)}`),
      ...figuresIf(sizes?.experts, `${sizes?.experts_used} of ${sizes?.experts} experts`),
      ...figuresIf(view && !head.decoder, `reads ${thousands(view?.position ?? 0)} tokens`),
      ...figuresIf(ms, `${(ms ?? 0).toFixed(1)} ms`), // 0: the trace was written without times
      ...figuresIf(settled, inside ? `settled after ${layerName(inside, settled - 1)}` : ""),
    ],
  };
}

/** @param {Trace} trace @param {StepView | null} view @returns {Station} */
function logits({ head }, view) {
  const best = view?.candidates.find(({ rank }) => rank === 1);
  return {
    id: "logits", name: "logits → softmax", panel: "step",
    caption: `${thousands(head.vocab_size)} scores, one for each token that the model knows.`,
    figures: [...figuresIf(best, `the likeliest is ${visible(best?.token ?? "")}, ${percent(best?.probability)}`),
      ...figuresIf(view, `entropy ${view?.entropy.toFixed(2)} bits`)],
  };
}

/** @param {Trace} trace @param {StepView | null} view @returns {Station} */
const chain = ({ head }, view) => ({
  id: "chain", name: "sampler settings", panel: "step",
  caption: `The chain: ${head.chain.length ? "your settings rule out tokens and change the odds" : "no setting rules out a token here"}.`,
  figures: view?.stages.map(({ label, survivors }) => `${label} left ${thousands(survivors)}`) ?? [],
});

/** @param {Trace} trace @param {StepView | null} view @returns {Station} */
function luck({ head }, view) {
  const station = { id: "luck", name: "luck", panel: "lesson" };
  if (view?.source === "forced") return { ...station, caption: "The token was forced: nothing was drawn.", figures: [] };
  const greedy = head.params["temperature"] === 0;
  const [first, second] = view ? sortByScore(view) : [];
  return {
    ...station,
    caption: greedy ? "Temperature is 0: no luck, the likeliest token wins." : "Each score gets a random number; the highest wins.",
    figures: [...figuresIf(first, `luck ${withSign(first?.luck ?? 0)}`),
      ...figuresIf(second, `ahead by ${((first?.score ?? 0) - (second?.score ?? 0)).toFixed(2)}`)],
  };
}

/** @param {StepView} view @returns {CandidateView[]} those that were left, the highest score first */
const sortByScore = (view) => view.candidates.filter((c) => c.score !== null && c.luck !== null)
  .sort((a, b) => (b.score ?? 0) - (a.score ?? 0));

/** @param {StepView | null} view @returns {Station} */
const token = (view) => ({
  id: "token", name: "token", panel: "tree", caption: "It is appended to the text, and the next step begins.",
  figures: view ? [percent(view.probability), `${view.bits.toFixed(2)} bits`, `rank ${thousands(view.rank)}`] : [],
});

/** @param {Pass | undefined} pass @returns {number} how many cells it revealed */
const countRevealed = (pass) => pass?.cells.filter(({ was, now }) => was === null && now !== null).length ?? 0;

/** @param {Pass | undefined} pass @param {StepView | null} view @returns {Station} */
const reveal = (pass, view) => ({
  id: "token", name: "reveal", panel: "canvas", caption: "A rule decides which cells keep their token.",
  figures: [
    ...figuresIf(pass, `${thousands(countRevealed(pass))} in pass ${countFrom1(pass?.index ?? 0)}`),
    ...(view ? [percent(view.probability), `rank ${thousands(view.rank)}`] : []),
  ],
});

/**
 * @param {StepView} view
 * @returns {[name: string, value: Words][]} every figure of the step, each with a gloss of its name
 */
export function allFigures(view) {
  const [first, second] = sortByScore(view);
  /** @type {[string, Words][]} */
  const figures = [
    ["probability", [percent(view.probability)]], ["after the chain", [percent(view.final)]],
    ["surprise", [`${view.bits.toFixed(2)} bits`]], ["rank", [thousands(view.rank)]],
    ["entropy", [`${view.entropy.toFixed(2)} bits`]], ["position", [thousands(view.position)]],
    ["token id", [thousands(view.id)]],
  ];
  if (first) figures.push(["luck", [withSign(first.luck ?? 0)]], ["score", [withSign(first.score ?? 0)]]);
  if (second) figures.push(["runner-up", [{ token: second.token }, ` ${withSign(second.score ?? 0)}`]]);
  if (view.end) figures.push(["end", [percent(view.end.probability)]]);
  if (view.kvTokens !== null) figures.push(["KV cache", [`${thousands(view.kvTokens)} tokens, ${memory(view.kvBytes)}`]]);
  for (const phase of PHASES) {
    const ms = view.ms[phase];
    if (ms) figures.push([phase === "draft" ? "drafting" : phase, [`${ms.toFixed(1)} ms`]]);
  }
  figures.push(["row hash", [view.rowHash]], ["fingerprint", [view.fingerprint]]);
  return figures;
}
