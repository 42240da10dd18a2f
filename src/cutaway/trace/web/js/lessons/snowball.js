/**
 * The lesson "How a mistake grows": one changed token and two runs from it. In one the model continues with the same
 * luck, in the other the original's tokens are forced. Nothing is stored but these runs.
 */

import { tableOf } from "./blocks.js";
import { button, el, replace, scrolling, setText, token } from "../parts/dom.js";
import { countFrom1, percent, probability, withSign } from "../figures/numbers.js";
import { sampleButton } from "./sample.js";
import { LEFT, RIGHT, WIDE, chart } from "./snowball-chart.js";
import { SHORTEST_RUN } from "../figures/common-runs.js";
import {
  againSentence, bands, changeWord, earlyStep, firstCommonRun, freeSentence, mistakeAt, pairOf, points, wordsAfter,
} from "./snowball-figures.js";
import { View } from "../parts/view.js";
/** @import { Run } from "../state/store.js" */
/** @import { Candidate, Trace } from "../state/trace.js" */
/** @import { Pair, Point, Band } from "./snowball-figures.js" */

const MOST_SHOWN = 96; // distances in the drawing, and tokens of each text
const BEFORE = 12; // tokens of the text before the mistake

class SnowballLesson extends View {
  early = new Offer((at) => this.begin(at), "primary");
  selected = new Offer((at) => this.begin(at));
  hint = el("p", {}, "Or write a text of your own.");
  sample = sampleButton(this);
  result = el("div", {});
  distance = el("input", { type: "range", min: 1, value: 1, oninput: () => this.point() });
  readout = el("p", { class: "readout" });
  links = el("p", { class: "row" });
  /** what is shown */
  key = "";
  /** @type {Pair | null} */
  pair = null;
  /** @type {Point[]} */
  points = [];
  /** @type {(distance: number) => void} */
  mark = () => {};

  build() {
    replace(this, el("p", {}, "Replace one token by a less likely one. Does the text recover? Two runs show it: in one the "
      + "model continues with the same luck, in the other the original’s tokens are forced."),
      this.early.element, this.selected.element, el("p", { class: "row" }, this.sample, this.hint), this.result);
  }

  draw() {
    if (this.closest("[hidden]")) return;
    const { run, state } = this.store;
    this.drawOffer();
    this.pair = run && pairOf(state.runs, run, state.step);
    const { pair } = this;
    const key = pair ? [pair.original, pair.free, pair.again].map((r) =>
      `${r.id} ${Math.floor(r.trace.steps.length / (r.live ? 8 : 1))} ${r.live}`).join() + ` ${pair.at}` : "";
    if (key === this.key) return;
    this.key = key;
    if (pair) this.show(pair);
    else replace(this.result);
  }

  drawOffer() {
    const { run, state } = this.store;
    const trace = run?.trace.known ? run.trace : null;
    const early = trace && earlyStep(trace);
    const isSelectionOther = trace !== null && state.step !== early;
    this.sample.hidden = this.hint.hidden = run !== null;
    this.sample.hidden ||= !state.about;
    const canRun = state.about !== null && run?.live === false;
    this.early.show(trace, early, canRun, "");
    this.selected.show(trace, isSelectionOther ? state.step : null, canRun, " at the selected step");
  }

  /** @param {number} at the step of the mistake */
  begin(at) {
    const run = this.store.run && this.session.adopt(this.store.run);
    const mistake = run && mistakeAt(run.trace, at);
    if (!run || !mistake) return;
    const name = run.trace.nameOf(mistake.id);
    const prefix = [...run.trace.outputIds.slice(0, at), mistake.id];
    const forced = [...prefix, ...wordsAfter(run.trace, at)];
    this.session.fork(run, at, mistake.id);
    this.session.start(this.session.makeContinuation(run, forced, { max_tokens: forced.length }),
      { parent: run.id, at, name: `${name} at ${countFrom1(at)}, then the original’s tokens` });
    this.store.select(run.id, at); // each of the new runs has selected itself
  }

  /** @param {Pair} pair */
  show(pair) {
    this.points = points(pair);
    const live = pair.free.live || pair.again.live;
    const meeting = live ? null : firstCommonRun(pair);
    const visiblePoints = this.points.slice(0, MOST_SHOWN);
    const { drawing, place } = chart(visiblePoints, meeting);
    const cursor = drawing.querySelector(".cursor");
    this.mark = (distance) => ["x1", "x2"].forEach((x) => cursor?.setAttribute(x, String(place(distance))));
    drawing.addEventListener("click", (event) => this.handleClick(event, drawing, visiblePoints.length));
    this.distance.max = String(Math.max(visiblePoints.length, 1));
    const word = changeWord(pair.original.trace, pair.at, pair.free.request?.forced[pair.at] ?? -1);
    const more = this.points.length > MOST_SHOWN ? `The first ${MOST_SHOWN} of ${this.points.length} distances. ` : "";
    replace(this.result,
      el("h2", {}, `The ${word} at step ${countFrom1(pair.at)} of run ${pair.original.id}`),
      el("p", { class: "verdict", role: "status" }, live ? "The runs are being generated …"
        : `${againSentence(this.points, word)} ${freeSentence(this.points, meeting, word)}`),
      el("p", { class: "faint" }, `${more}Dots: the same token as the original at the same position. Bar: where `
        + `${SHORTEST_RUN} tokens of the original in a row come again. This is one ${word} in one run; cutaway snowball averages over many.`),
      scrolling("The curves", drawing),
      el("label", { class: "row distance" }, "Distance", this.distance), this.readout, this.links,
      bandsTable(bands(this.points)), el("h2", {}, "The two texts"), ...texts(pair));
    this.point();
  }

  /** @param {MouseEvent} event @param {SVGElement} drawing @param {number} count */
  handleClick(event, drawing, count) {
    const { left, width } = drawing.getBoundingClientRect();
    const share = (((event.clientX - left) / width) * WIDE - LEFT) / (RIGHT - LEFT);
    this.distance.value = String(Math.min(Math.max(Math.ceil(share * count), 1), count));
    this.point();
  }

  /** Show the figures at a distance, and buttons that select its step. */
  point() {
    const distance = Number(this.distance.value);
    const point = this.points[distance - 1];
    if (!this.pair || !point) return;
    const { original, free, again, at } = this.pair;
    const step = at + distance;
    this.mark(distance);
    replace(this.readout, ...readout(point, original, free, step));
    const linkTo = (/** @type {Run} */ run, /** @type {string} */ label) =>
      run.trace.steps[step] && button(label, () => this.store.select(run.id, step));
    replace(this.links, el("span", { class: "faint" }, `Show step ${countFrom1(step)} of`), linkTo(original, "the original"),
      linkTo(again, "its tokens after the mistake"), linkTo(free, "the own continuation"));
  }
}

/** A step whose token can be replaced: what would replace it, and a button that does. */
class Offer {
  at = 0;
  words = el("span");

  /** @param {(at: number) => void} take @param {string} [kind] of the button */
  constructor(take, kind = "") {
    this.button = button("", () => take(this.at), { class: kind });
    this.element = el("p", { class: "row" }, this.button, this.words);
  }

  /** @param {Trace | null} trace @param {number | null} at null: none @param {boolean} canRun @param {string} place in words */
  show(trace, at, canRun, place) {
    const mistake = trace && at !== null ? mistakeAt(trace, at) : null;
    this.element.hidden = !trace || at === null;
    if (!trace || at === null) return;
    this.at = at;
    this.button.hidden = !mistake;
    this.button.disabled = !canRun || !wordsAfter(trace, at).length;
    if (mistake) setText(this.button, `Make the ${changeWord(trace, at, mistake.id)}${place}`);
    replace(this.words, ...(mistake ? describeOffer(trace, at, mistake) : [`Step ${countFrom1(at)} has no other token on record.`]));
  }
}

/** @param {Trace} trace @param {number} at @param {Candidate} mistake @returns {(Node | string)[]} */
function describeOffer(trace, at, mistake) {
  const step = trace.steps[at];
  const left = wordsAfter(trace, at).length;
  const share = percent(probability(mistake.logit - (step?.log_sum_exp ?? 0)));
  return [`Step ${countFrom1(at)}: `, token(trace.nameOf(mistake.id)), ` (${share}) replaces `, token(trace.nameOf(step?.token_id ?? -1)),
    ` (${percent(probability(step?.logprob ?? 0))})`,
    left ? `; ${left === 1 ? "one token" : `${left} tokens`} of the original after it.`
      : "; no token of the original follows: choose an earlier step."];
}

/** @param {number | null} value @returns {string} */
const twoPlaces = (value) => (value === null ? "–" : value.toFixed(2));

/** @param {Point} point @param {Run} original @param {Run} free @param {number} step @returns {(Node | string)[]} */
function readout(point, original, free, step) {
  const [originalStep, freeStep] = [original, free].map(({ trace }) => trace.steps[step]);
  /** @type {(Node | string)[]} */
  const parts = [`Distance ${point.distance}. `];
  if (originalStep && point.plain !== null) {
    parts.push(token(original.trace.nameOf(originalStep.token_id)), ` ${twoPlaces(point.plain)} bits in the original, `
      + `${twoPlaces(point.again)} after the mistake`);
    if (point.again !== null) parts.push(` (${withSign(point.again - point.plain)})`);
    parts.push(". ");
  }
  if (freeStep) parts.push("Own continuation: ", token(free.trace.nameOf(freeStep.token_id)), ` with ${twoPlaces(point.free)} bits.`);
  return parts;
}

/** @param {Band[]} rows @returns {HTMLElement} */
const bandsTable = (rows) => tableOf({ head: ["distance", "original", "after the mistake", "cost", "own continuation"], bars: [],
  spans: [], rows: rows.map((row) => [row.name, ...[row.plain, row.again].map(twoPlaces), withSign(row.cost), twoPlaces(row.free)]) },
"Mean bits per token, by distance from the mistake");

/** @param {Pair} pair @returns {HTMLElement[]} both, with the mistake marked */
function texts({ original, at, free, again }) {
  return [
    el("p", { class: "faint" }, "With the original’s tokens forced:"), textOf(original, again, at),
    el("p", { class: "faint" }, "Left to itself, with the same luck:"), textOf(original, free, at),
  ];
}

/** @param {Run} original @param {Run} run @param {number} at @returns {HTMLElement} */
function textOf(original, { trace }, at) {
  const name = (/** @type {number} */ i) => trace.nameOf(trace.steps[i]?.token_id ?? -1);
  const range = (/** @type {number} */ from, /** @type {number} */ to) =>
    Array.from({ length: Math.max(Math.min(to, trace.steps.length) - from, 0) }, (_, i) => name(from + i)).join("");
  const replaced = original.trace.nameOf(original.trace.steps[at]?.token_id ?? -1);
  const cut = trace.steps.length > at + 1 + MOST_SHOWN;
  return el("p", { class: "token text" },
    el("span", { class: "before" }, (at > BEFORE ? "…" : "") + range(Math.max(at - BEFORE, 0), at)),
    el("del", {}, replaced), trace.steps.length > at && el("ins", {}, name(at)),
    range(at + 1, at + 1 + MOST_SHOWN) + (cut ? " …" : ""));
}

customElements.define("snowball-lesson", SnowballLesson);
