/**
 * The settings of the selected run as recorded, and its sampling chain in order. Does not know those of the next run.
 */

import { button, copyText, el, replace } from "../parts/dom.js";
import { hue, stageLabel, stageLetter } from "../figures/numbers.js";
import { LENGTH, REPETITION, SAMPLING, written } from "./parameters.js";
import { View } from "../parts/view.js";
/** @import { Trace } from "../state/trace.js" */

/** @type {[string, string][]} */
const SHOWN = [
  ...[...SAMPLING, ...REPETITION, ...LENGTH].map(({ name, label }) => /** @type {[string, string]} */ ([name, label])),
  ["preset", "preset"], ["stop", "stop"],
];

class InForce extends View {
  heading = el("h2", {});
  chain = el("ol", { class: "chain" });
  table = el("dl", { class: "in-force mono" });
  seed = el("span", { class: "mono" });
  copied = el("span", { class: "faint", role: "status" });
  copy = button("Copy", () => this.copySeed(), { "aria-label": "Copy the seed" });
  body = el("div", {}, this.chain, this.table,
    el("div", { class: "row" }, el("span", { class: "faint" }, "seed"), this.seed, this.copy, this.copied));
  /** @type {Trace | null | undefined} undefined: nothing is drawn yet */
  shown = undefined;

  build() {
    replace(this, this.heading, this.body);
  }

  draw() {
    const { run, state } = this.store;
    const trace = run?.trace.known ? run.trace : null;
    if (trace === this.shown) return;
    this.shown = trace;
    this.hidden = trace === null;
    this.heading.textContent = trace ? `Settings of run ${state.run}` : "";
    this.body.hidden = !trace;
    this.copied.textContent = "";
    if (trace) this.drawHead(trace, state.about?.defaults ?? {});
  }

  /** @param {Trace} trace @param {Record<string, any>} defaults */
  drawHead({ head }, defaults) {
    replace(this.chain, ...head.chain.map((stage) => el("li", {},
      el("b", { class: "letter", style: { "--hue": hue(stageLetter(stage)) } }, stageLetter(stage)),
      stageLabel(stage))), el("li", { class: "faint" }, head.params["temperature"] === 0 ? "likeliest" : "draw"));
    replace(this.table, ...SHOWN.filter(([name]) => name in head.params).map(([name, label]) => {
      const other = JSON.stringify(head.params[name]) !== JSON.stringify(defaults[name]);
      return el("div", { class: other ? "other" : null }, el("dt", {}, label), el("dd", {}, written(head.params[name])));
    }));
    this.seed.textContent = head.seed;
  }

  async copySeed() {
    this.copied.textContent = (await copyText(this.seed)) ? "copied" : "selected: this browser copies with its own keys only";
  }
}

customElements.define("in-force", InForce);
