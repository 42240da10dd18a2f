/**
 * Why a text ended, and why not before: the end token at every step.
 */

import { Chart } from "./chart.js";
import { button, el, headRow, replace } from "./dom.js";
import { percent, thousands } from "../figures/numbers.js";
import { endRows } from "./rows.js";
import { seriesOf } from "../figures/series.js";
import { constraintSentences } from "../figures/constraint.js";
import { whyItWentOn } from "../figures/end-explanation.js";
import { View } from "./view.js";
import { closest, isGreedy, momentSentence, momentsBeforeEnd, outcomeColour, outcomePhrase, whySentence } from "../figures/endings.js";
/** @import { Series } from "../figures/series.js" */
/** @import { Run } from "../state/store.js" */

const CLOSEST = 5;

class WhyPanel extends View {
  sentence = el("p", { class: "sentence" });
  words = el("div");
  moments = el("ol", { class: "moments" });
  chart = new Chart(endRows, { choose: (step) => this.store.goTo(step), hover: () => {} });
  counts = el("table");
  expected = el("p", { class: "faint" }, "Expected ends: the sum of the end token's probabilities under the model's own logits in those steps.");
  content = el("div");
  /** @type {Series | null} */
  shownSeries = null;
  length = 0;
  live = false;

  build() {
    replace(this.content,
      this.words,
      el("h3", {}, "Probability of the end token at every step, by what happened to it"), this.chart.element,
      el("div", { class: "counts" }, this.counts), this.expected,
      el("h3", {}, "The steps that came closest to ending the text earlier"), this.moments);
    replace(this, el("h2", {}, "Why it ended, and why not before"), this.sentence, this.content);
  }

  draw() {
    if (this.hidden) return;
    const { run, state } = this.store;
    this.content.hidden = !run?.trace.steps.length;
    if (!run || this.content.hidden) {
      this.sentence.textContent = "No token has been generated yet.";
      return;
    }
    const series = seriesOf(run.trace);
    this.chart.show(series, state.step, run.live);
    if (series !== this.shownSeries || series.length !== this.length || run.live !== this.live) this.explain(run, series);
  }

  /** @param {Run} run @param {Series} series */
  explain(run, series) {
    this.shownSeries = series;
    this.length = series.length;
    this.live = run.live;
    this.sentence.textContent = run.live ? "The text is still being generated." : whySentence(run.trace);
    const words = whyItWentOn(series);
    replace(this.words, ...[...constraintSentences(run.trace), ...(words.length ? words : ["No end token is recorded."])]
      .map((text) => el("p", {}, text)));
    this.expected.hidden = isGreedy(run.trace); // which expects none: the likeliest token is taken
    replace(this.counts, ...countsOf(series));
    replace(this.moments, ...closest(momentsBeforeEnd(run.trace, series.moments)).slice(0, CLOSEST).map((moment) =>
      el("li", {}, button(momentSentence(run.trace, moment), () => this.store.goTo(moment.index)))));
  }
}

/** @param {Series} series @returns {HTMLElement[]} a table with a row for each outcome, the most frequent first */
function countsOf({ outcomes, length, trace }) {
  const hasDraws = !isGreedy(trace);
  const rows = [...outcomes]
    .sort(([, a], [, b]) => b.count - a.count)
    .map(([outcome, { letter, count, expected }]) => el("tr", {},
      el("td", {}, el("span", { class: "letter", style: { "--hue": outcomeColour(letter) } }, letter)),
      el("th", { scope: "row" }, outcomePhrase(outcome)),
      el("td", {}, thousands(count)), el("td", {}, percent(count / length)),
      hasDraws && el("td", {}, expected >= 0.01 ? expected.toFixed(2) : "<0.01")));
  return [el("caption", { class: "visually-hidden" }, "What happened to the end token"),
    headRow("", "the end token", "steps", "share", ...(hasDraws ? ["expected ends"] : [])), el("tbody", {}, ...rows)];
}

customElements.define("why-panel", WhyPanel);
