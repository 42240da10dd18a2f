/**
 * Where the time of the selected step went, to scale, and that of all steps so far, which opens
 * Timelines.
 */

import { staircase, timeBar } from "../drawings/time.js";
import { partsOf, timeSentence, timesOf } from "../figures/time.js";
import { draftSentence } from "../figures/ways.js";
import { button, el, renderMark, replace, setText } from "./dom.js";
import { View, throttle } from "./view.js";

const BAR = { width: 160, height: 10 };
const STAIRS = { width: 160, height: 22 };

class TimeView extends View {
  bar = el("span", { class: "bar", "aria-hidden": "true" });
  parts = el("span", { class: "parts" });
  stairs = button("", () => this.store.set({ panel: "timelines" }), { class: "stairs", "aria-label": "All steps: Timelines" });
  says = el("span", { class: "faint" });
  pace = throttle(this, () => this.show());

  build() {
    replace(this, this.bar, this.parts, this.stairs, this.says);
  }

  draw() {
    if (this.store.run?.trace.known) this.pace();
    else this.hidden = true;
  }

  show() {
    const { run, state } = this.store;
    if (!run?.trace.known) return;
    const { trace } = run;
    const at = trace.head.decoder ? state.pass ?? trace.passes.length - 1 : state.step;
    const record = (trace.head.decoder ? trace.passes : trace.steps)[at];
    const times = timesOf(trace);
    const parts = record ? partsOf(record) : [];
    this.bar.hidden = this.stairs.hidden = !parts.length;
    replace(this.bar, parts.length ? renderMark(timeBar(parts, BAR)) : null);
    setText(this.parts, parts.map(({ name, ms }) => `${name} ${ms.toFixed(1)} ms`).join(" | "));
    replace(this.stairs, parts.length ? renderMark(staircase(times, times.at[at] ?? -1, STAIRS)) : null);
    const sentences = times.blocks.length ? [timeSentence(times, trace.head.decoder !== undefined), draftSentence(trace)] : [];
    setText(this.says, sentences.filter(Boolean).join(" "));
    this.hidden = !parts.length && !this.says.textContent;
  }
}

customElements.define("time-view", TimeView);
