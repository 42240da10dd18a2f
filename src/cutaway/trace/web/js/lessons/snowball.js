/**
 * One mistake, two ways on: the model by itself with the same luck, and made to say the original's
 * words. The experiment is the two runs themselves; nothing else is kept.
 */

import { el, replace } from "../parts/dom.js";
import { percent, probability, signed, visible } from "../figures/numbers.js";
import { sampleButton } from "./sample.js";
import { LEFT, RIGHT, WIDE, chart } from "./snowball-chart.js";
import { MEETING, againSentence, bands, freeSentence, meeting, mistakeAt, pairOf, points, wordsAfter }
  from "./snowball-figures.js";
import { View } from "../parts/view.js";
/** @import { Run } from "../state/store.js" */
/** @import { Pair, Point, Band } from "./snowball-figures.js" */

const SHOWN = 96; // distances in the drawing, and tokens of each text
const BEFORE = 12; // tokens before the fork

class SnowballLesson extends View {
  offer = el("p", {});
  go = el("button", { type: "button", class: "primary", onclick: () => this.begin() }, "Make the mistake");
  sample = sampleButton(this);
  result = el("div", {});
  distance = el("input", { type: "range", min: 1, value: 1, oninput: () => this.point() });
  readout = el("p", { class: "readout" });
  links = el("p", { class: "row" });
  /** what is shown, so that it is drawn once */
  key = "";
  /** @type {Pair | null} */
  pair = null;
  /** @type {Point[]} */
  points = [];
  /** @type {(distance: number) => void} */
  mark = () => {};

  build() {
    replace(this, el("p", {}, "Put the likeliest other token in place of one of yours. Does the text recover? "
      + "Two runs show it: one goes on by itself with the same luck, one is made to say what the original says."),
      el("p", { class: "row" }, this.go, this.sample, this.offer), this.result);
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
    const trace = run?.trace;
    const mistake = trace?.known ? mistakeAt(trace, state.step) : null;
    const left = trace && mistake ? wordsAfter(trace, state.step).length : 0;
    this.sample.hidden = run !== null || !state.about;
    this.go.hidden = run === null;
    this.go.disabled = !mistake || !left || !state.about || run?.live === true;
    replace(this.offer, ...(trace && mistake ? offer(trace, state.step, mistake, left) : [
      run ? "No other token is on record at this step." : "Or write something of your own, and choose a step."]));
  }

  begin() {
    const { run, state } = this.store;
    const at = state.step;
    const mistake = run && mistakeAt(run.trace, at);
    if (!run || !mistake) return;
    const name = run.trace.nameOf(mistake.id);
    const begun = [...run.trace.outputIds.slice(0, at), mistake.id];
    const forced = [...begun, ...wordsAfter(run.trace, at)];
    this.session.fork(run, at, mistake.id);
    this.session.start(this.session.continued(run, forced, { max_tokens: forced.length }),
      { parent: run.id, at, name: `${name} at ${at}, then the original’s words` });
    this.look(run, at); // each of them has selected itself
  }

  /** @param {Run} run @param {number} step */
  look(run, step) {
    this.store.set({ run: run.id, step, candidate: 0, follow: false, whatIf: null });
  }

  /** @param {Pair} pair */
  show(pair) {
    this.points = points(pair);
    const live = pair.free.live || pair.again.live;
    const met = live ? null : meeting(pair);
    const shown = this.points.slice(0, SHOWN);
    const { drawing, place } = chart(shown, met);
    const cursor = drawing.querySelector(".cursor");
    this.mark = (distance) => ["x1", "x2"].forEach((x) => cursor?.setAttribute(x, String(place(distance))));
    drawing.addEventListener("click", (event) => this.clicked(event, drawing, shown.length));
    this.distance.max = String(Math.max(shown.length, 1));
    const more = this.points.length > SHOWN ? `The first ${SHOWN} of ${this.points.length} distances. ` : "";
    replace(this.result,
      el("h2", {}, `The mistake at step ${pair.at} of run ${pair.original.id}`),
      el("p", { class: "verdict", role: "status" }, live ? "It is being written …"
        : `${againSentence(this.points)} ${freeSentence(this.points, met)}`),
      el("p", { class: "faint" }, `${more}Dots: the same token as the original at the same place. A bar: where `
        + `${MEETING} of its tokens in a row come again. One mistake in one run: cutaway snowball averages over many.`),
      el("div", { class: "scroller", tabindex: 0, role: "group", "aria-label": "The curves" }, drawing),
      el("label", { class: "row distance" }, "Distance", this.distance), this.readout, this.links,
      tableOf(bands(this.points)), el("h2", {}, "The two texts"), ...texts(pair));
    this.point();
  }

  /** @param {MouseEvent} event @param {SVGElement} drawing @param {number} count */
  clicked(event, drawing, count) {
    const { left, width } = drawing.getBoundingClientRect();
    const share = (((event.clientX - left) / width) * WIDE - LEFT) / (RIGHT - LEFT);
    this.distance.value = String(Math.min(Math.max(Math.ceil(share * count), 1), count));
    this.point();
  }

  /** Tell the figures at a distance, and lead there. */
  point() {
    const distance = Number(this.distance.value);
    const point = this.points[distance - 1];
    if (!this.pair || !point) return;
    const { original, free, again, at } = this.pair;
    const step = at + distance;
    this.mark(distance);
    replace(this.readout, ...readout(point, original, free, step));
    const to = (/** @type {Run} */ run, /** @type {string} */ what) =>
      run.trace.steps[step] && el("button", { type: "button", onclick: () => this.look(run, step) }, what);
    replace(this.links, el("span", { class: "faint" }, `Look at step ${step} of`), to(original, "the original"),
      to(again, "its words after the mistake"), to(free, "its own words"));
  }
}

/**
 * @param {import("../state/trace.js").Trace} trace @param {number} at
 * @param {import("../state/trace.js").Candidate} mistake @param {number} left @returns {(Node | string)[]}
 */
function offer(trace, at, mistake, left) {
  const p = probability(mistake.logit - (trace.steps[at]?.log_sum_exp ?? 0));
  return [`Step ${at}: `, token(trace.nameOf(mistake.id)), ` (${percent(p)}) in place of `,
    token(trace.nameOf(trace.steps[at]?.token_id ?? -1)),
    left ? `; ${left === 1 ? "one word" : `${left} words`} of the original after it.`
      : "; nothing of the original follows: take an earlier step."];
}

/** @param {string} name @returns {HTMLElement} */
const token = (name) => el("span", { class: "token" }, visible(name));

/** @param {number | null} value @returns {string} */
const twoPlaces = (value) => (value === null ? "–" : value.toFixed(2));

/** @param {Point} point @param {Run} original @param {Run} free @param {number} step @returns {(Node | string)[]} */
function readout(point, original, free, step) {
  const [meant, own] = [original, free].map(({ trace }) => trace.steps[step]);
  /** @type {(Node | string)[]} */
  const parts = [`Distance ${point.distance}. `];
  if (meant && point.plain !== null) {
    parts.push(token(original.trace.nameOf(meant.token_id)), ` ${twoPlaces(point.plain)} bits in the original, `
      + `${twoPlaces(point.again)} after the mistake`);
    if (point.again !== null) parts.push(` (${signed(point.again - point.plain)})`);
    parts.push(". ");
  }
  if (own) parts.push("By itself it says ", token(free.trace.nameOf(own.token_id)), ` with ${twoPlaces(point.free)} bits.`);
  return parts;
}

/** @param {Band[]} rows @returns {HTMLElement} */
function tableOf(rows) {
  const heads = ["distance", "original", "after the mistake", "cost", "its own words"];
  return el("div", { class: "scroller", tabindex: 0, role: "group", "aria-label": "Mean bits by distance" },
    el("table", {}, el("caption", { class: "faint" }, "Mean bits a token, by distance from the mistake"),
      el("thead", {}, el("tr", {}, ...heads.map((head, i) => el("th", { scope: "col", class: i && "figure" }, head)))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, el("th", { scope: "row" }, row.name),
        ...[twoPlaces(row.plain), twoPlaces(row.again), signed(row.cost), twoPlaces(row.free)].map((cell) =>
          el("td", { class: "figure" }, cell)))))));
}

/** @param {Pair} pair @returns {HTMLElement[]} both, with the fork marked */
function texts({ original, at, free, again }) {
  return [
    el("p", { class: "faint" }, "Made to say the original’s words:"), textOf(original, again, at),
    el("p", { class: "faint" }, "By itself, with the same luck:"), textOf(original, free, at),
  ];
}

/** @param {Run} original @param {Run} run @param {number} at @returns {HTMLElement} */
function textOf(original, { trace }, at) {
  const name = (/** @type {number} */ i) => trace.nameOf(trace.steps[i]?.token_id ?? -1);
  const range = (/** @type {number} */ from, /** @type {number} */ to) =>
    Array.from({ length: Math.max(Math.min(to, trace.steps.length) - from, 0) }, (_, i) => name(from + i)).join("");
  const stood = original.trace.nameOf(original.trace.steps[at]?.token_id ?? -1);
  const cut = trace.steps.length > at + 1 + SHOWN;
  return el("p", { class: "token text" },
    el("span", { class: "before" }, (at > BEFORE ? "…" : "") + range(Math.max(at - BEFORE, 0), at)),
    el("del", {}, stood), trace.steps.length > at && el("ins", {}, name(at)),
    range(at + 1, at + 1 + SHOWN) + (cut ? " …" : ""));
}

customElements.define("snowball-lesson", SnowballLesson);
