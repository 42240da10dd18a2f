/**
 * The lesson "Why won't it stop?": the end token along the run, at which steps a wider top-k would have kept it,
 * and the run again from the step where an end was likeliest.
 */

import { button, el, replace, setText } from "../parts/dom.js";
import { filtersOff } from "../figures/catalogue.js";
import { countFrom1 } from "../figures/numbers.js";
import { bars, peaks } from "../figures/columns.js";
import { Chart } from "../parts/chart.js";
import { whyItWentOn } from "../figures/end-explanation.js";
import { endKey, endRows } from "../parts/rows.js";
import { sampleButton } from "./sample.js";
import { seriesOf } from "../figures/series.js";
import { KEEPS, changes, keepSentence, momentsWithin, passedMoments, rerunOf } from "./stop-figures.js";
import { View } from "../parts/view.js";
import { closest, isGreedy, momentSentence, whySentence } from "../figures/endings.js";
/** @import { Run } from "../state/store.js" */
/** @import { Series } from "../figures/series.js" */
/** @import { Row } from "../parts/rows.js" */

class StopLesson extends View {
  explanation = el("div", {});
  chart = new Chart((series) => [...endRows(series), this.keptRow(series)],
    { choose: (step) => this.store.goTo(step), hover: () => {} });
  key = el("ul", { class: "key row faint", "aria-label": "What happened to the end token" });
  readout = el("p", { class: "readout" });
  keep = el("input", { type: "range", min: 0, max: KEEPS.length - 1, value: 5, oninput: () => this.slide() });
  keepOutput = el("output", {});
  effect = el("p", { role: "status" });
  moment = el("p", {});
  again = button("", () => this.rerun(), { class: "primary" });
  change = el("div", {});
  /** @type {HTMLElement[]} hidden until there is a run */
  parts = [];
  shownKey = "-";
  comparedKey = "";

  build() {
    const legend = el("p", { class: "faint" }, "P(end): the end token’s probability under the model’s own logits, on a "
      + "logarithmic scale, and a lane for each outcome. The lane ≤k: the steps at which the top-k below would keep it.");
    const slider = el("label", { class: "row" }, "Keep with top-k", this.keep, this.keepOutput);
    this.parts = [this.chart.element, this.key, legend, this.readout, slider, this.effect, this.moment,
      el("p", { class: "row" }, this.again)];
    replace(this, this.explanation, ...this.parts, this.change);
  }

  draw() {
    if (this.closest("[hidden]")) return;
    const { run, state } = this.store;
    const trace = run?.trace.steps.length ? run.trace : null;
    for (const part of this.parts) part.hidden = !trace;
    if (trace) this.chart.show(seriesOf(trace), state.step, run?.live ?? false);
    const key = trace ? `${run?.id} ${Math.floor(trace.steps.length / (run?.live ? 16 : 1))} ${run?.live}` : "";
    if (key !== this.shownKey) {
      this.shownKey = key;
      if (trace) this.show(trace);
      else replace(this.explanation, el("p", {}, "Every step of a run records its end token: how likely it was, and what excluded it."),
        !run && el("p", {}, sampleButton(this)));
    }
    const moment = trace && seriesOf(trace).moments[state.step];
    setText(this.readout, trace && moment ? `The selected step, ${momentSentence(trace, moment)}.` : "");
    this.showChange();
  }

  /** @param {import("../state/trace.js").Trace} trace */
  show(trace) {
    const series = seriesOf(trace);
    const [best] = closest(passedMoments(trace));
    replace(this.explanation, el("p", {}, whySentence(trace)), el("p", { class: "verdict" }, whyItWentOn(series).join(" ")));
    replace(this.key, ...endKey(series));
    setText(this.moment, best ? `The likeliest end was at ${momentSentence(trace, best)}.` : "");
    this.again.hidden = !best;
    this.keep.disabled = !best;
    this.slide();
  }

  /** @param {Series} series @returns {Row} the steps at which the slider's top-k would keep the end token */
  keptRow({ moments }) {
    const k = this.topK;
    const steps = new Set(momentsWithin(moments.flatMap((moment) => moment ?? []), k).map(({ index }) => index));
    const here = (/** @type {number} */ step) => (steps.has(step) ? 1 : -Infinity);
    return { name: "", top: "≤k", foot: "", high: 8,
      paths: (columns, foot) => bars(columns, peaks(here, columns.edges), () => "var(--ink)", () => 7, foot) };
  }

  /** Show the effect of the slider's top-k. */
  slide() {
    const trace = this.store.run?.trace;
    if (!trace?.steps.length) return;
    const word = this.topK === 0 ? "off: every token" : `${this.topK}`;
    setText(this.keepOutput, word);
    this.keep.setAttribute("aria-valuetext", word);
    setText(this.effect, keepSentence(passedMoments(trace), this.topK));
    this.chart.drawAll();
    const at = closest(passedMoments(trace))[0]?.index ?? 0;
    setText(this.again, `Continue from step ${countFrom1(at)} with ${this.rule} and the same luck`);
    this.again.disabled = !this.store.state.about || this.store.run?.live === true;
  }

  /** @returns {number} the slider's value; 0 keeps all tokens */
  get topK() {
    return KEEPS[Number(this.keep.value)] ?? 0;
  }

  /** @returns {string} */
  get rule() {
    const trace = this.store.run?.trace;
    const filter = this.topK === 0 ? "no filter" : `top-k ${this.topK} alone`;
    return trace && isGreedy(trace) ? `temperature 1 and ${filter}` : filter;
  }

  rerun() {
    const { step } = this.store.state;
    const run = this.store.run && this.session.adopt(this.store.run);
    const best = run && closest(passedMoments(run.trace))[0];
    if (!run || !best) return;
    const settings = { ...filtersOff(), top_k: this.topK, ignore_eos: false,
      ...(isGreedy(run.trace) ? { temperature: 1 } : {}) };
    const request = this.session.makeContinuation(run, run.trace.outputIds.slice(0, best.index), settings);
    this.session.start(request, { parent: run.id, at: best.index, name: `${this.rule} from ${countFrom1(best.index)}` });
    this.store.select(run.id, step); // the new run has selected itself
  }

  /** Show what the latest rerun changed. */
  showChange() {
    const { run, state } = this.store;
    const latest = run && rerunOf(state.runs, run);
    const key = latest ? `${latest.again.id} ${latest.again.live} ${latest.original.trace.steps.length}` : "";
    if (key === this.comparedKey) return;
    this.comparedKey = key;
    replace(this.change, ...(latest ? this.describeChange(latest.original, latest.again) : []));
  }

  /** @param {Run} original @param {Run} again @returns {HTMLElement[]} */
  describeChange(original, again) {
    const head = el("h2", {}, `What changed in run ${again.id}: ${again.name}`);
    if (again.live) return [head, el("p", {}, "The run is being generated …")];
    const sentences = again.error ? [again.error] : changes(original, again);
    return [head, ...sentences.map((sentence) => el("p", {}, sentence)),
      el("p", { class: "row" }, button(`Run ${original.id} at step ${countFrom1(again.at)}`, () => this.store.select(original.id, again.at)),
        button(`Run ${again.id} at step ${countFrom1(again.at)}`, () => this.store.select(again.id, again.at)))];
  }
}

customElements.define("stop-lesson", StopLesson);
