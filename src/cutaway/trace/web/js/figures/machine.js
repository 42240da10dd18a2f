/**
 * The machine at one step: its stations from the text so far to the next token, with the figures that arise there.
 * Knows the record, and the step's inside where it is known already. Knows no document.
 */

import { gloss } from "./catalogue.js";
import { hue, memory, percent, stageLetter, thousands, withSign } from "./numbers.js";
import { PHASES } from "./series.js";
import { stepView } from "./step-view.js";
/** @import { Trace, Step, Pass } from "../state/trace.js" */
/** @import { StepInside } from "../state/step-inside.js" */
/** @import { StepView, CandidateView } from "./step-view.js" */

/**
 * words    of a figure, in which a token is an object
 * gloss    what the figure means; letter, colour: of a stage; minor: left out where there is little room
 * @typedef {(string | {token: string})[]} Words
 * @typedef {{name: string, gloss: string, words: Words, letter?: string, colour?: string, minor?: boolean}} Figure
 *
 * What a drawing shows. row: of the embedding matrix, 0 to 1; settled: the share of the layers after which the token
 * was the likeliest; shares: probabilities; open: by stage, how many tokens are left, on a logarithmic scale of 0 to 1;
 * race: where the lines of the two highest scores begin and end, 0 to 1; masks: which of some cells are masked
 * @typedef {{row?: number, layers?: number, settled?: number | null, shares?: {share: number, isChosen: boolean}[],
 *   open?: {share: number, colour: string}[], race?: [number, number][], token?: string, masks?: boolean[]}} Shown
 *
 * panel    that shows more of it
 * @typedef {{id: string, name: string, panel: string, figures: Figure[], caption: string, picture: Shown}} Station
 */

const MOST_BARS = 8; // candidates in the drawing of the logits

/** @param {string} name of the gloss @param {Words} words @returns {Figure} */
const fig = (name, ...words) => ({ name, gloss: gloss(name), words });

/** @param {string} name @param {Words} words @returns {Figure} */
const minor = (name, ...words) => ({ ...fig(name, ...words), minor: true });

/** @param {unknown} condition @param {Figure[]} figures @returns {Figure[]} none where there is nothing to show */
const figuresIf = (condition, ...figures) => (condition ? figures : []);

/**
 * @param {Trace} trace @param {Step | undefined} step undefined: none has come yet
 * @param {StepInside | null} inside of the step @param {Pass | undefined} [pass] of a canvas, the one that is shown
 * @returns {Station[]} in the order in which a token passes them
 */
export function stations(trace, step, inside, pass) {
  const view = step ? stepView(trace, step) : null;
  const canvas = trace.head.decoder !== undefined;
  return [
    canvas ? cells(trace, pass) : context(trace, step, view),
    embedding(trace, canvas ? null : lastId(trace, step)),
    layers(trace, view, inside, pass),
    logits(trace, view),
    chain(trace, view),
    luck(trace, view),
    canvas ? reveal(trace, view, pass) : token(view),
  ];
}

/** @param {Trace} trace @param {Step | undefined} step @returns {number | null} the token before the step's */
function lastId(trace, step) {
  const { prompt_token_ids: prompt } = trace.head;
  return (step?.index ? trace.steps[step.index - 1]?.token_id : prompt.at(-1)) ?? null;
}

/** @param {Trace} trace @param {Step | undefined} step @param {StepView | null} view @returns {Station} */
function context(trace, step, view) {
  const last = lastId(trace, step);
  return {
    id: "tokens", name: "tokens", panel: "without", picture: {},
    caption: "The text so far, as tokens: words or pieces of words.",
    figures: [
      fig("context", `${thousands(view?.position ?? trace.head.prompt_token_ids.length)} so far`),
      ...figuresIf(last !== null, fig("last token", "last ", { token: trace.nameOf(last ?? 0) })),
      ...figuresIf(view, fig("KV cache", "KV cache ", memory(view?.kvBytes ?? 0).replace(" ", "\u00a0"))),
    ],
  };
}

/** @param {Trace} trace @param {Pass | undefined} pass @returns {Station} the canvas before the token is revealed */
function cells(trace, pass) {
  const seen = pass?.cells.length ?? 0;
  const masked = pass?.cells.filter(({ was }) => was === null).length ?? 0;
  return {
    id: "tokens", name: "canvas", panel: "canvas", picture: { masks: [true, false, true, true] },
    caption: "A row of cells; those without a token hold a mask.",
    figures: [fig("canvas", `${thousands(trace.places)} cells`),
      ...figuresIf(seen, fig("masked", `${thousands(masked)} masked`))],
  };
}

/** @param {Trace} trace @param {number | null} id @returns {Station} */
function embedding({ head }, id) {
  const width = head.sizes?.hidden;
  return {
    id: "embedding", name: "embedding", panel: "inside",
    picture: id === null ? {} : { row: id / head.vocab_size },
    caption: `Each token becomes ${width ? `a row of ${thousands(width)} numbers` : "a row of numbers"}.`,
    figures: [
      ...figuresIf(id !== null, fig("token id", `token ${thousands(id ?? 0)} of ${thousands(head.vocab_size)}`)),
      ...figuresIf(width, minor("width", `${thousands(width ?? 0)} wide`)),
    ],
  };
}

/**
 * @param {Trace} trace @param {StepView | null} view @param {StepInside | null} inside @param {Pass | undefined} pass
 * @returns {Station}
 */
function layers({ head }, view, inside, pass) {
  const { sizes } = head;
  const settled = inside?.value("lens_settled") ?? null; // a row of the lens: 0 is before the first layer
  const ms = pass?.ms["run"] ?? view?.ms["run"];
  const isBidirectional = head.decoder?.attention === "bidirectional";
  return {
    id: "layers", name: sizes ? `${thousands(sizes.layers)} layers` : "layers", panel: "inside",
    picture: { layers: sizes?.layers ?? 6, settled: settled === null || !inside ? null : settled / inside.layers },
    caption: `Attention reads ${isBidirectional ? "the other tokens" : "the tokens before"}; the MLP works on each token alone.`,
    figures: [
      ...figuresIf(sizes, fig("heads", `${sizes?.heads} heads`), minor("MLP", `MLP ${thousands(sizes?.mlp ?? 0)}`)),
      ...figuresIf(sizes?.experts, fig("experts", `${sizes?.experts_used} of ${sizes?.experts} experts`)),
      ...figuresIf(view && !head.decoder, fig("attention", `reads ${thousands(view?.position ?? 0)}`)),
      ...figuresIf(isBidirectional, fig("attention", "reads both sides")),
      ...figuresIf(ms, fig("run", `${(ms ?? 0).toFixed(1)} ms`)), // 0: the trace was written without times
      ...figuresIf(settled, fig("settled", `settled after layer ${settled - 1}`)),
    ],
  };
}

/** @param {Trace} trace @param {StepView | null} view @returns {Station} */
function logits({ head }, view) {
  const best = view?.candidates.find(({ rank }) => rank === 1);
  return {
    id: "logits", name: "logits → softmax", panel: "step",
    picture: { shares: view?.candidates.slice(0, MOST_BARS).map(({ probability: share, chosen }) => ({ share, isChosen: chosen })) ?? [] },
    caption: `${thousands(head.vocab_size)} scores, one for each token that the model knows.`,
    figures: [
      ...figuresIf(best, fig("likeliest", { token: best?.token ?? "" }, ` ${percent(best?.probability)}`)),
      ...figuresIf(view, fig("entropy", `entropy ${view?.entropy.toFixed(2)} bits`)),
    ],
  };
}

/** @param {Trace} trace @param {StepView | null} view @returns {Station} */
function chain({ head }, view) {
  const whole = Math.log(head.vocab_size);
  const colour = (/** @type {number} */ i) => hue(stageLetter(head.chain[i] ?? { stage: "?" }));
  return {
    id: "chain", name: "sampler settings", panel: "step",
    picture: { open: view?.stages.map(({ survivors }, i) => ({ share: Math.log(survivors) / whole, colour: colour(i) })) ?? [] },
    caption: head.chain.length ? "The chain: your settings rule out tokens and change the odds." : "The chain: no setting rules out a token here.",
    figures: view?.stages.map(({ letter, survivors, label }, i) => ({ name: "left", words: [thousands(survivors)], letter,
      colour: colour(i), gloss: `${label}: ${gloss("left")}` })) ?? [],
  };
}

/** @param {Trace} trace @param {StepView | null} view @returns {Station} */
function luck({ head }, view) {
  if (view?.source === "forced") {
    return { id: "luck", name: "luck", panel: "lesson", picture: {}, caption: "The token was forced: nothing was drawn.",
      figures: [fig("forced", "not drawn")] };
  }
  const scored = view ? sortByScore(view) : [];
  const [first, second] = scored;
  const greedy = head.params["temperature"] === 0;
  const likeliest = scored.reduce((a, b) => ((b.final ?? 0) > (a?.final ?? 0) ? b : a), first);
  return {
    id: "luck", name: "luck", panel: "lesson", picture: { race: race(first, second) },
    caption: greedy ? "Temperature is 0: no luck, the likeliest token wins."
      : "Each score gets a random number; the highest wins.",
    figures: first ? [
      fig("luck", `luck ${withSign(first.luck ?? 0)}`),
      fig("score", first === likeliest ? "kept the likeliest" : "beat ",
        ...(first === likeliest || !likeliest ? [] : [{ token: likeliest.token }])),
      ...figuresIf(second, minor("lead", "by ", ((first.score ?? 0) - (second?.score ?? 0)).toFixed(2))),
    ] : figuresIf(view && greedy, fig("greedy", "not used")),
  };
}

/** @param {StepView} view @returns {CandidateView[]} those that were left, the highest score first */
export const sortByScore = (view) => view.candidates.filter((c) => c.score !== null && c.luck !== null)
  .sort((a, b) => (b.score ?? 0) - (a.score ?? 0));

/**
 * @param {CandidateView | undefined} first @param {CandidateView | undefined} second
 * @returns {[number, number][]} where each line begins, at its log-probability, and ends, at its score; 1 is the highest score
 */
function race(first, second) {
  const lines = [first, second].flatMap((c) => (c ? [[(c.score ?? 0) - (c.luck ?? 0), c.score ?? 0]] : []));
  const [low, high] = [Math.min(...lines.flat()), Math.max(...lines.flat())];
  const shareOf = (/** @type {number | undefined} */ value) => ((value ?? 0) - low) / (high - low || 1);
  return lines.map(([from, to]) => [shareOf(from), shareOf(to)]);
}

/** @param {StepView | null} view @returns {Station} */
function token(view) {
  return {
    id: "token", name: "token", panel: "tree", picture: view ? { token: view.token } : {},
    caption: "It is appended to the text, and the next step begins.",
    figures: view ? tokenFigures(view) : [],
  };
}

/** @param {StepView} view @returns {Figure[]} */
const tokenFigures = (view) => [
  fig("probability", percent(view.probability)), fig("surprise", `${view.bits.toFixed(2)} bits`),
  fig("rank", `rank ${thousands(view.rank)}`), ...figuresIf(view.source === "forced", fig("forced", "forced")),
];

/** @param {Trace} trace @param {StepView | null} view @param {Pass | undefined} pass @returns {Station} */
function reveal(trace, view, pass) {
  const count = pass?.cells.filter(({ was, now }) => was === null && now !== null).length ?? 0;
  return {
    id: "token", name: "reveal", panel: "canvas", picture: view ? { token: view.token } : {},
    caption: "A rule decides which cells keep their token.",
    figures: [
      ...figuresIf(pass, fig("revealed", `${thousands(count)} in pass ${(pass?.index ?? 0) + 1}`)),
      ...(view ? [fig("probability", percent(view.probability)), fig("rank", `rank ${thousands(view.rank)}`)] : []),
    ],
  };
}

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
    if (ms) figures.push([phase === "draft" ? "draft model" : phase, [`${ms.toFixed(1)} ms`]]);
  }
  figures.push(["row hash", [view.rowHash]], ["fingerprint", [view.fingerprint]]);
  return figures;
}
