/**
 * The figures of the selected step, and buttons that go to others.
 */

import { button, el, fact, replace } from "./dom.js";
import { memory, percent, thousands, visible } from "../figures/numbers.js";
import { isUncertain, stepView } from "../figures/step-view.js";
import { View } from "./view.js";
/** @import { Step } from "../state/trace.js" */
/** @import { StepView } from "../figures/step-view.js" */

/** @type {Record<string, string>} */
const SOURCES = {
  sampled: "drawn",
  greedy: "the likeliest token",
  forced: "forced, not drawn",
  draft: "drawn, equal to the draft token",
};

class StepFacts extends View {
  where = el("strong", { class: "where" });
  token = el("span", { class: "token" });
  source = el("span", { class: "faint" });
  figures = el("dl");
  back = button("←", () => this.store.goTo(this.store.state.step - 1), labelled("the previous step (←)"));
  on = button("→", () => this.store.goTo(this.store.state.step + 1), labelled("the next step (→)"));
  uncertain = button("next uncertain", () => this.search(),
    { title: "the next step at which no token has a probability of 0.5 (e)" });
  /** @type {Step | undefined} */
  shown;

  build() {
    this.uncertain.append(el("kbd", {}, "e"));
    const place = el("p", { class: "row" }, this.back, this.where, this.on, this.uncertain,
      this.token, this.source);
    replace(this, place, this.figures);
  }

  draw() {
    const { run, state } = this.store;
    const step = run?.trace.steps[state.step];
    this.hidden = !step;
    if (!run || !step) return;
    const last = run.trace.steps.length - 1;
    this.where.textContent = `step ${state.step} of ${last}`;
    this.back.disabled = state.step === 0;
    this.on.disabled = state.step === last;
    if (step === this.shown) return;
    this.shown = step;
    const view = stepView(run.trace, step);
    this.token.textContent = visible(view.token);
    this.source.textContent = SOURCES[view.source] ?? view.source;
    replace(this.figures, ...facts(view));
  }

  search() {
    const { run, state } = this.store;
    const next = run?.trace.steps.find((step) => step.index > state.step && isUncertain(step));
    if (next) this.store.goTo(next.index);
    else this.store.set({ notice: "There is no uncertain step after this one." });
  }
}

/** @param {string} title @returns {Record<string, string>} of a button whose label is a sign */
const labelled = (title) => ({ title, "aria-label": title });

/** @param {StepView} view @returns {HTMLElement[]} */
function facts(view) {
  const { fingerprint: print } = view;
  return [
    fact("probability", `${percent(view.probability)} → ${percent(view.final)}`,
      "under the model's own logits → after the sampling chain"),
    fact("surprise", `${view.bits.toFixed(2)} bits`, "−log2 of the probability under the model's own logits"),
    fact("rank", thousands(view.rank), "of all tokens; 1 is the likeliest"),
    fact("entropy", `${view.entropy.toFixed(2)} bits`, "of the distribution of the model's own logits"),
    fact("position", thousands(view.position), "of the token in the text, including the prompt"),
    ...(view.kvTokens === null ? [] : [fact("kv", `${thousands(view.kvTokens)} · ${memory(view.kvBytes)}`,
      "tokens whose keys and values were read, and their bytes")]),
    fact("ms", Object.values(view.ms).map((ms) => ms.toFixed(1)).join(" + "),
      Object.keys(view.ms).join(" + ")),
    fact("fingerprint", `${print.slice(0, 4)}…${print.slice(-4)}`, print),
  ];
}

customElements.define("step-facts", StepFacts);
