/**
 * The timelines of a whole run: surprise, entropy, the KV cache and time, on one axis of steps, and the time of the same
 * text where another run computed it in another way. The end token's probability is under the text.
 */

import { Chart } from "./chart.js";
import { el, replace } from "./dom.js";
import { countFrom1, memory, visible } from "../figures/numbers.js";
import { PHASE_COLOURS, allRows } from "./rows.js";
import { PHASES, seriesOf } from "../figures/series.js";
import { twinOf } from "../figures/ways.js";
import "./ways.js";
import { View } from "./view.js";
/** @import { Run } from "../state/store.js" */
/** @import { Series } from "../figures/series.js" */
/** @import { Step } from "../state/trace.js" */

class RunTimelines extends View {
  chart = new Chart((series) => allRows(series, this.twin), {
    choose: (step) => this.store.goTo(step),
    hover: (step) => this.hover(step),
  });
  readout = el("p", { class: "readout mono" });
  key = el("ul", { class: "key row faint", "aria-label": "Key" }, el("li", {}, "time, from the bottom up:"),
    ...PHASES.map((phase, i) => el("li", {}, el("i", { style: { background: PHASE_COLOURS[i] } }), phase)),
    el("li", {}, "Where steps share a pixel, the highest is shown. Times above the scale are cut off."));
  ways = /** @type {View} */ (document.createElement("text-ways"));
  content = el("div", {}, this.chart.element, this.readout, this.key, this.ways);
  /** @type {Run | null} a run of the same text, computed in another way */
  twin = null;
  empty = el("p", { class: "faint" }, "No token has been generated yet.");
  /** @type {number | null} */
  hovered = null;
  read = ""; // what the readout shows

  build() {
    const buttons = [["Fit", false], ["8 px per step", true]].map(([label, near]) =>
      el("button", { "aria-pressed": String(!near), onclick: (/** @type {Event} */ event) => {
        this.chart.zoom(near === true);
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === event.target));
      } }, String(label)));
    const zoom = el("div", { class: "zoom row", role: "group", "aria-label": "Zoom" }, ...buttons);
    this.content.prepend(zoom);
    replace(this, this.empty, this.content);
    this.ways.attach(this.store, this.session);
  }

  draw() {
    if (this.hidden) return;
    const { run, state } = this.store;
    const hasSteps = (run?.trace.steps.length ?? 0) > 0;
    this.empty.hidden = hasSteps;
    this.content.hidden = !hasSteps;
    if (!run || !hasSteps) return;
    const series = seriesOf(run.trace);
    this.twin = twinOf(state.runs, run);
    this.chart.show(series, state.step, run.live, this.twin?.trace.steps.length);
    this.readOut(series);
  }

  /** @param {number | null} step */
  hover(step) {
    this.hovered = step;
    if (this.store.run?.trace.steps.length) this.readOut(seriesOf(this.store.run.trace));
  }

  /** @param {Series} series show the figures of the step under the pointer, or else of the selected one */
  readOut(series) {
    const figures = figuresOf(series, Math.min(this.hovered ?? this.store.state.step, series.length - 1));
    const quiet = this.chart.dragging || this.hovered !== null || this.store.run?.live;
    this.readout.setAttribute("aria-live", quiet ? "off" : "polite");
    if (figures.join() === this.read) return;
    this.read = figures.join();
    const [at, name, ...rest] = figures;
    replace(this.readout, `${at} `, el("span", { class: "token" }, name), ` · ${rest.join(" · ")}`);
  }
}

/** @param {Series} series @param {number} index @returns {string[]} */
function figuresOf({ trace, surprise, entropy, kv }, index) {
  const step = /** @type {Step} */ (trace.steps[index]);
  const ms = PHASES.filter((phase) => step.ms[phase]).map((phase) => `${phase} ${(step.ms[phase] ?? 0).toFixed(1)}`);
  return [
    `step ${countFrom1(index)}`, visible(trace.nameOf(step.token_id)),
    `${surprise[index]?.toFixed(2)} bits`, `entropy ${entropy[index]?.toFixed(2)}`,
    `KV ${memory(kv[index] ?? 0)}`, ...(ms.length ? [`ms ${ms.join(", ")}`] : []),
  ];
}

customElements.define("run-timelines", RunTimelines);
