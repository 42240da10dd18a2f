/**
 * The line under the text: how likely its end was at each step. A click opens the panel that explains it. The drawing is
 * drawings/end-line.js; it is drawn again when the run grows or the window changes.
 */

import { HIGH, endCursor, endLine } from "../drawings/end-line.js";
import { endSentence, findNearMiss } from "../figures/endings.js";
import { seriesOf } from "../figures/series.js";
import { el, renderMark, replace, setAttributes, svg, typeScale } from "./dom.js";
import { View } from "./view.js";

class EndLine extends View {
  marks = svg("g");
  cursor = svg("g");
  picture = svg("svg", { "aria-hidden": "true" }, this.marks, this.cursor);
  button = el("button", { type: "button", onclick: (/** @type {Event} */ event) => this.open(event) }, this.picture);
  width = 0;
  shownKey = "";

  build() {
    replace(this, this.button);
    new ResizeObserver(([entry]) => {
      this.width = Math.round(entry?.contentRect.width ?? 0);
      this.store.announce();
    }).observe(this);
  }

  draw() {
    const { run, state } = this.store;
    const series = run && !run.trace.known?.decoder ? seriesOf(run.trace) : null;
    this.hidden = !series?.moments.some(Boolean);
    this.classList.toggle("unwritten", state.arriving);
    if (this.hidden || !series || !run || !this.width) return;
    const scale = typeScale();
    const key = `${run.id} ${series.length} ${run.live} ${this.width} ${scale}`;
    if (key !== this.shownKey) {
      this.shownKey = key;
      setAttributes(this.picture, { width: this.width, height: HIGH + 16 * scale });
      replace(this.marks, ...endLine(series, this.width, scale).map(renderMark));
      const sentence = run.live ? "The end by step" : endSentence(run.trace, series.moments); // not at every token
      setAttributes(this.button, { "aria-label": `${sentence} Why it ended`, title: sentence });
    }
    replace(this.cursor, renderMark(endCursor(series, this.width, state.step)));
  }

  /** @param {Event} event a click on the flag also goes to its step */
  open(event) {
    const { run } = this.store;
    const near = run && findNearMiss(run.trace, seriesOf(run.trace).moments);
    if (near && /** @type {Element} */ (event.target).closest(".flag")) this.store.goTo(near.index);
    this.store.set({ panel: "why" });
  }
}

customElements.define("end-line", EndLine);
