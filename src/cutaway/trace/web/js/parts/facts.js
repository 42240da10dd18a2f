/**
 * The selected step: which it is, buttons that go to others, its token, and, folded, all of its figures with what each
 * means.
 */

import { button, el, replace, token } from "./dom.js";
import { gloss } from "../figures/catalogue.js";
import { endsThought } from "../figures/constraint.js";
import { allFigures } from "../figures/stations.js";
import { countFrom1, visible } from "../figures/numbers.js";
import { isUncertain, stepView } from "../figures/step-view.js";
import { View } from "./view.js";
/** @import { Step } from "../state/trace.js" */
/** @import { StepView } from "../figures/step-view.js" */

/** @type {Record<string, [words: string, gloss: string]>} by source of a token */
const SOURCES = {
  sampled: ["", "drawn"], // as usual
  greedy: ["the likeliest token", "greedy"],
  forced: ["forced, not drawn", "forced"],
  grammar: ["left by the grammar", "grammar"],
  "thinking budget": ["left by the thinking budget", "thinking budget"],
  draft: ["drawn, equal to the draft token", "draft"],
};

class StepFacts extends View {
  place = el("strong", { class: "where" });
  token = el("span", { class: "token" });
  source = el("span", { class: "faint" });
  figures = el("dl", { id: "all-figures", hidden: true });
  back = button("←", () => this.store.goTo(this.store.state.step - 1), labelAttributes("the previous step (←)"));
  on = button("→", () => this.store.goTo(this.store.state.step + 1), labelAttributes("the next step (→)"));
  uncertain = button("next uncertain", () => this.search(),
    { title: "the next step at which no token has a probability of 0.5 (e)" });
  all = button("Figures", () => this.unfold(), { "aria-expanded": "false", "aria-controls": "all-figures",
    title: "every figure of this step, and what it means" });
  /** @type {Step | undefined} */
  shownStep;

  build() {
    this.uncertain.append(el("kbd", {}, "e"));
    const place = el("p", { class: "row" }, this.back, this.place, this.on, this.uncertain,
      this.token, this.source, this.all);
    replace(this, place, this.figures);
  }

  draw() {
    const { run, state } = this.store;
    const step = run?.trace.steps[state.step];
    this.hidden = !step;
    if (!run || !step) return;
    const count = run.trace.steps.length;
    this.place.textContent = `step ${countFrom1(state.step)} of ${count}`;
    this.back.disabled = state.step === 0;
    this.on.disabled = state.step === count - 1;
    if (step === this.shownStep) return;
    this.shownStep = step;
    const view = stepView(run.trace, step);
    this.token.textContent = visible(view.token);
    this.drawSource(view);
    if (!this.figures.hidden) this.drawFigures();
  }

  /** @param {StepView} view how the token came about; where one was forced, what the draw was */
  drawSource(view) {
    const source = this.shownStep && endsThought(this.shownStep) ? "thinking budget" : view.source;
    const [words, meaning] = SOURCES[source] ?? [source, "drawn"];
    const draw = view.candidates.find((c) => c.drawn);
    const other = view.source === "forced" && draw && !draw.chosen;
    this.source.title = gloss(meaning);
    replace(this.source, words, ...(other ? ["; the draw was ", token(draw.token)] : []));
  }

  unfold() {
    this.figures.hidden = !this.figures.hidden;
    this.all.setAttribute("aria-expanded", String(!this.figures.hidden));
    if (!this.figures.hidden) this.drawFigures();
  }

  drawFigures() {
    const { run } = this.store;
    if (!run || !this.shownStep) return;
    replace(this.figures, ...allFigures(stepView(run.trace, this.shownStep)).map(([name, words]) => el("div", {},
      el("dt", {}, name),
      el("dd", { class: "mono" }, ...words.map((word) => (typeof word === "string" ? word : token(word.token)))),
      el("dd", { class: "faint" }, gloss(name)))));
  }

  search() {
    const { run, state } = this.store;
    const next = run?.trace.steps.find((step) => step.index > state.step && isUncertain(step));
    if (next) this.store.goTo(next.index);
    else this.store.set({ notice: "There is no uncertain step after this one." });
  }
}

/** @param {string} title @returns {Record<string, string>} of a button whose label is a sign */
const labelAttributes = (title) => ({ title, "aria-label": title });

customElements.define("step-facts", StepFacts);
