/**
 * "Why won't it stop?": the end token's probability along the run, by what stood in its way; what a
 * wider filter would have let in; and the run again from its likeliest ending.
 */

import { el, replace, svg } from "../parts/dom.js";
import { filtersOff } from "../figures/catalogue.js";
import { height, hue, percent } from "../figures/numbers.js";
import { sampleButton } from "./sample.js";
import { KEEPS, byLetter, changes, diagnosis, goneOn, isGreedy, likeliest, momentsOf, rerunOf, within,
  withinSentence } from "./stop-figures.js";
import { View } from "../parts/view.js";
import { momentSentence, outcomePhrase, whySentence } from "../figures/endings.js";
/** @import { Run } from "../state/store.js" */
/** @import { EndMoment } from "../figures/endings.js" */

const WIDE = 720;
const HIGH = 90;
const LEFT = 44;
const LANE = 12; // of ticks below

class StopLesson extends View {
  why = el("div", {});
  chart = el("div", { class: "scroller", tabindex: 0, role: "group", "aria-label": "The end token, step by step" });
  key = el("ul", { class: "outcomes row faint", "aria-label": "What became of the end token" });
  readout = el("p", { class: "readout" });
  keep = el("input", { type: "range", min: 0, max: KEEPS.length - 1, value: 5, oninput: () => this.slide() });
  kept = el("output", {});
  effect = el("p", { role: "status" });
  moment = el("p", {});
  again = el("button", { type: "button", class: "primary", onclick: () => this.rerun() });
  change = el("div", {});
  ticks = svg("path", { class: "ticks" });
  cursor = svg("path", { class: "cursor" });
  /** @type {HTMLElement[]} what is shown once there is a run */
  parts = [];
  shown = "-";
  compared = "";
  count = 0;

  build() {
    const legend = el("p", { class: "faint" }, "Bars: the end token’s probability under the model’s own logits, on a "
      + "scale of four tens, by what became of it. Squares: where the top-k below would keep it.");
    const slider = el("label", { class: "row" }, "Keep with top-k", this.keep, this.kept);
    this.parts = [this.chart, this.key, legend, this.readout, slider, this.effect, this.moment,
      el("p", { class: "row" }, this.again)];
    replace(this, this.why, ...this.parts, this.change);
    this.chart.addEventListener("click", (event) => this.clicked(event));
  }

  draw() {
    if (this.closest("[hidden]")) return;
    const run = this.store.run;
    const trace = run?.trace;
    const key = trace?.known ? `${run?.id} ${trace.steps.length} ${run?.live}` : "";
    const sameRun = key.split(" ")[0] === this.shown.split(" ")[0];
    const little = sameRun && run?.live && (trace?.steps.length ?? 0) < this.count * 1.05; // it grows every frame
    for (const part of this.parts) part.hidden = !key;
    if (key !== this.shown && !little) {
      this.shown = key;
      if (trace?.known && trace.steps.length) this.show();
      else this.clear();
    }
    if (key) this.point();
    this.tellChange();
  }

  clear() {
    replace(this.why, el("p", {}, "Every step of a run has its end token on record: how likely it was, and what "
      + "stood in its way."), !this.store.run && el("p", {}, sampleButton(this)));
  }

  show() {
    const trace = this.store.run?.trace;
    if (!trace) return;
    this.count = trace.steps.length;
    const moments = momentsOf(trace);
    const best = likeliest(goneOn(trace));
    replace(this.why, el("p", {}, whySentence(trace)), el("p", { class: "verdict" }, diagnosis(trace)));
    replace(this.chart, this.drawing(moments, trace.steps.length));
    replace(this.key, ...outcomes(moments));
    replace(this.moment, best && `Likeliest ending — ${momentSentence(trace, best)}.`);
    this.again.hidden = !best;
    this.keep.disabled = !best;
    this.slide();
  }

  /** @param {EndMoment[]} moments @param {number} count @returns {SVGElement} on a scale of four tens */
  drawing(moments, count) {
    const wide = (WIDE - LEFT) / count;
    const bars = [...byLetter(moments)].map(([letter, row]) => svg("path", { class: "bars", style: { fill: hue(letter) },
      d: row.map((m) => bar(m.index, wide, height(m.probability))).join("") }));
    const grid = [1, 0.1, 0.01, 0.001].map((share) => svg("g", {},
      svg("path", { class: "grid", d: `M${LEFT} ${HIGH * (1 - height(share)) + 8}H${WIDE}` }),
      svg("text", { class: "scale", x: LEFT - 5, y: HIGH * (1 - height(share)) + 11 }, percent(share))));
    return svg("svg", { class: "curves", viewBox: `0 0 ${WIDE} ${HIGH + LANE + 24}`, role: "img",
      "aria-label": "The probability of an end token at each step, under the model's own logits" },
      ...grid, ...bars, svg("path", { class: "foot", d: `M${LEFT} ${HIGH + 8}H${WIDE}` }), this.ticks, this.cursor,
      svg("text", { class: "tick", x: LEFT, y: HIGH + LANE + 22 }, "0"),
      svg("text", { class: "scale", x: WIDE - 2, y: HIGH + LANE + 22 }, `step ${count - 1}`));
  }

  /** Tell what the slider's top-k would have let in. */
  slide() {
    const trace = this.store.run?.trace;
    if (!trace?.known || !trace.steps.length) return;
    const k = this.asked;
    const word = k === 0 ? "off: every token" : `${k}`;
    const wide = (WIDE - LEFT) / trace.steps.length;
    replace(this.kept, word);
    this.keep.setAttribute("aria-valuetext", word);
    replace(this.effect, withinSentence(goneOn(trace), k));
    this.ticks.setAttribute("d", within(momentsOf(trace), k).map(({ index }) =>
      `M${(LEFT + index * wide).toFixed(2)} ${HIGH + 11}h${Math.max(wide, 0.6).toFixed(2)}v${LANE - 5}h${-Math.max(wide, 0.6).toFixed(2)}z`).join(""));
    const at = likeliest(goneOn(trace))?.index ?? 0;
    replace(this.again, `Write on from step ${at} with ${this.rule}, the same luck`);
    this.again.disabled = !this.store.state.about || this.store.run?.live === true;
  }

  /** @returns {number} the top-k that the slider is at; 0 keeps all */
  get asked() {
    return KEEPS[Number(this.keep.value)] ?? 0;
  }

  /** @returns {string} */
  get rule() {
    const trace = this.store.run?.trace;
    const filter = this.asked === 0 ? "no filter" : `top-k ${this.asked} alone`;
    return trace && isGreedy(trace) ? `temperature 1 and ${filter}` : filter;
  }

  /** Tell of the selected step. */
  point() {
    const trace = this.store.run?.trace;
    const moment = trace && momentsOf(trace).find((m) => m.index === this.store.state.step);
    if (!trace || !moment) return replace(this.readout);
    const x = (LEFT + ((moment.index + 0.5) * (WIDE - LEFT)) / trace.steps.length).toFixed(2);
    this.cursor.setAttribute("d", `M${x} 4V${HIGH + LANE + 10}`);
    const text = `Selected, ${momentSentence(trace, moment)}.`;
    if (this.readout.textContent !== text) replace(this.readout, text);
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const box = this.chart.querySelector("svg")?.getBoundingClientRect();
    const count = this.store.run?.trace.steps.length ?? 0;
    if (!box || !count) return;
    const share = (((event.clientX - box.left) / box.width) * WIDE - LEFT) / (WIDE - LEFT);
    this.store.goTo(Math.floor(share * count));
  }

  rerun() {
    const run = this.store.run;
    const best = run && likeliest(goneOn(run.trace));
    if (!run || !best) return;
    const { step } = this.store.state;
    const settings = { ...filtersOff(), top_k: this.asked, ignore_eos: false,
      ...(isGreedy(run.trace) ? { temperature: 1 } : {}) };
    const request = this.session.continued(run, run.trace.outputIds.slice(0, best.index), settings);
    this.session.start(request, { parent: run.id, at: best.index, name: `${this.rule} from ${best.index}` });
    this.store.set({ run: run.id, step, candidate: 0, follow: false }); // it has selected itself
  }

  /** Tell what the last run of ours changed. */
  tellChange() {
    const { run, state } = this.store;
    const made = run && rerunOf(state.runs, run);
    const key = made ? `${made.again.id} ${made.again.live} ${made.original.trace.steps.length}` : "";
    if (key === this.compared) return;
    this.compared = key;
    replace(this.change, ...(made ? this.changed(made.original, made.again) : []));
  }

  /** @param {Run} original @param {Run} again @returns {HTMLElement[]} */
  changed(original, again) {
    const head = el("h2", {}, `What changed in run ${again.id}: ${again.name}`);
    if (again.live) return [head, el("p", {}, "It is being written …")];
    const look = (/** @type {Run} */ run, /** @type {string} */ what) => el("button", { type: "button",
      onclick: () => this.store.set({ run: run.id, step: again.at, candidate: 0, follow: false }) }, what);
    const sentences = again.error ? [again.error] : changes(original, again);
    return [head, ...sentences.map((sentence) => el("p", {}, sentence)),
      el("p", { class: "row" }, look(original, `Run ${original.id} at step ${again.at}`), look(again, `Run ${again.id} there`))];
  }
}

/** @param {number} index @param {number} wide @param {number} share @returns {string} */
function bar(index, wide, share) {
  const broad = Math.max(wide * 0.9, 0.5);
  const high = share * HIGH;
  return `M${(LEFT + index * wide).toFixed(2)} ${HIGH + 8}v${-high.toFixed(2)}h${broad.toFixed(2)}v${high.toFixed(2)}z`;
}

/** @param {EndMoment[]} moments @returns {HTMLElement[]} how often each outcome was, with its letter */
function outcomes(moments) {
  return [...byLetter(moments)].map(([letter, row]) =>
    el("li", {}, el("i", { style: { background: hue(letter) } }), el("b", {}, letter),
      ` ${outcomePhrase(row[0]?.outcome ?? "")}: ${row.length}`));
}

customElements.define("stop-lesson", StopLesson);
