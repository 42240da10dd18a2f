/**
 * The settings of the selected run as recorded: its sampling chain in order, the settings that differ from the server's
 * defaults, and the others folded. Does not know those of the next run.
 */

import { el, replace, setText } from "../parts/dom.js";
import { hue, stageLabel, stageLetter } from "../figures/numbers.js";
import { COMPUTING, FORM, LENGTH, REPETITION, SAMPLING, valueText } from "./parameters.js";
import { View } from "../parts/view.js";
/** @import { Trace } from "../state/trace.js" */

/** @typedef {{name: string, label: string, write?: (value: any) => string}} Setting */

/** @type {Setting[]} */
const SETTINGS = [
  ...SAMPLING, ...REPETITION, ...LENGTH, ...COMPUTING, ...FORM.map(({ name, label }) => ({ name, label })),
  { name: "preset", label: "preset" }, { name: "stop", label: "stop" },
];

class InForce extends View {
  heading = el("h2", {});
  chain = el("ol", { class: "chain" });
  differing = el("dl", { class: "in-force mono" });
  count = el("summary");
  usual = el("dl", { class: "in-force mono" });
  folded = el("details", {}, this.count, this.usual);
  /** @type {unknown[]} the run, its trace and the server whose defaults are shown */
  sources = [];

  build() {
    replace(this, this.heading, this.chain, this.differing, this.folded);
  }

  draw() {
    const { run, state } = this.store;
    const trace = run?.trace.known ? run.trace : null;
    const now = [trace, state.run, state.about];
    if (now.every((source, i) => source === this.sources[i])) return;
    this.sources = now;
    this.hidden = trace === null;
    this.heading.textContent = this.store.showsRecording ? "Settings of the recorded run" : `Settings of run ${state.run}`;
    if (trace) this.drawHead(trace, state.about?.defaults ?? {});
  }

  /** @param {Trace} trace @param {Record<string, any>} defaults */
  drawHead({ head }, defaults) {
    replace(this.chain, ...head.chain.map((stage) => el("li", {},
      el("b", { class: "letter", style: { "--hue": hue(stageLetter(stage)) } }, stageLetter(stage)),
      stageLabel(stage))), el("li", { class: "faint" }, head.params["temperature"] === 0 ? "likeliest" : "draw"));
    const recorded = SETTINGS.filter(({ name }) => name in head.params);
    const differs = (/** @type {Setting} */ { name }) => JSON.stringify(head.params[name]) !== JSON.stringify(defaults[name]);
    const usual = recorded.filter((setting) => !differs(setting));
    replace(this.differing, ...recorded.filter(differs).map((setting) => entry(setting, head.params)));
    replace(this.usual, ...usual.map((setting) => entry(setting, head.params)));
    setText(this.count, `${usual.length} more, as by default`);
  }
}

/** @param {Setting} setting @param {Record<string, any>} params @returns {HTMLElement} */
const entry = ({ name, label, write = valueText }, params) => el("div", {}, el("dt", {}, label), el("dd", {}, write(params[name])));

customElements.define("in-force", InForce);
