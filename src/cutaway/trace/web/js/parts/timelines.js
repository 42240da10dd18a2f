/**
 * The timelines of a whole run: surprise, entropy, the end token's probability, the KV cache and time, on one
 * axis of steps.
 */

import { Chart } from "./chart.js";
import { el, replace } from "./dom.js";
import { memory, percent, visible } from "../figures/numbers.js";
import { PHASE_COLOURS, allRows, endKey } from "./rows.js";
import { PHASES, seriesOf } from "../figures/series.js";
import { View } from "./view.js";
import { outcomePhrase } from "../figures/endings.js";
/** @import { Series } from "../figures/series.js" */
/** @import { Step } from "../state/trace.js" */

class RunTimelines extends View {
  chart = new Chart(allRows, {
    choose: (step) => this.store.goTo(step),
    hover: (step) => this.hover(step),
  });
  readout = el("p", { class: "readout mono" });
  key = el("ul", { class: "key row faint", "aria-label": "Key" });
  content = el("div", {}, this.chart.element, this.readout, this.key);
  empty = el("p", { class: "faint" }, "No token has been generated yet.");
  /** @type {number | null} */
  hovered = null;
  /** @type {string} what the readout and the key show */
  read = "";
  keyed = "";

  build() {
    const buttons = [["Fit", false], ["8 px per step", true]].map(([label, near]) =>
      el("button", { "aria-pressed": String(!near), onclick: (/** @type {Event} */ event) => {
        this.chart.zoom(near === true);
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === event.target));
      } }, String(label)));
    const zoom = el("div", { class: "zoom row", role: "group", "aria-label": "Zoom" }, ...buttons);
    this.content.prepend(zoom);
    replace(this, this.empty, this.content);
  }

  draw() {
    if (this.hidden) return;
    const { run, state } = this.store;
    const hasSteps = (run?.trace.steps.length ?? 0) > 0;
    this.empty.hidden = hasSteps;
    this.content.hidden = !hasSteps;
    if (!run || !hasSteps) return;
    const series = seriesOf(run.trace);
    this.chart.show(series, state.step, run.live);
    this.showKey(series);
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

  /** @param {Series} series */
  showKey(series) {
    const keyed = [...series.outcomes.keys()].join();
    if (this.keyed === keyed && this.key.firstChild) return;
    this.keyed = keyed;
    const phases = PHASES.map((phase, i) =>
      el("li", {}, el("i", { style: { background: PHASE_COLOURS[i] } }), phase));
    replace(this.key, ...endKey(series), el("li", {}, "time, from the bottom up:"), ...phases,
      el("li", {}, "Where steps share a pixel, the highest is shown. Times above the scale are cut off."));
  }
}

/** @param {Series} series @param {number} index @returns {string[]} */
function figuresOf({ trace, surprise, entropy, moments, kv }, index) {
  const step = /** @type {Step} */ (trace.steps[index]);
  const end = moments[index];
  const ms = PHASES.filter((phase) => step.ms[phase]).map((phase) => `${phase} ${(step.ms[phase] ?? 0).toFixed(1)}`);
  return [
    `step ${index}`, visible(trace.nameOf(step.token_id)),
    `${surprise[index]?.toFixed(2)} bits`, `entropy ${entropy[index]?.toFixed(2)}`,
    end ? `P(end) ${percent(end.probability)}: the end token ${outcomePhrase(end.outcome)}`
      : "no end token recorded",
    `KV ${memory(kv[index] ?? 0)}`, ...(ms.length ? [`ms ${ms.join(", ")}`] : []),
  ];
}

customElements.define("run-timelines", RunTimelines);
