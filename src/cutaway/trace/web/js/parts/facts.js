/**
 * The selected step in a line or two: which one it is, and its figures.
 */

import { el, replace } from "./dom.js";
import { memory, percent, thousands, visible } from "../figures/numbers.js";
import { isUncertain, stepView } from "../figures/step-view.js";
import { View } from "./view.js";
/** @import { Step } from "../state/trace.js" */
/** @import { StepView } from "../figures/step-view.js" */

/** @type {Record<string, string>} */
const SOURCES = {
  sampled: "drawn",
  greedy: "the likeliest was taken",
  forced: "given, not drawn",
  draft: "drawn, as the draft token was",
};

class StepFacts extends View {
  where = el("strong", { class: "where" });
  token = el("span", { class: "token" });
  source = el("span", { class: "faint" });
  figures = el("dl");
  back = button("←", "the step before (←)", () => this.store.goTo(this.store.state.step - 1));
  on = button("→", "the next step (→)", () => this.store.goTo(this.store.state.step + 1));
  uncertain = button("next uncertain", "the next step at which no token had one half (e)",
    () => this.search(), el("kbd", {}, "e"));
  /** @type {Step | undefined} */
  shown;

  build() {
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
    else this.store.set({ notice: "After this step the model was never uncertain." });
  }
}

/**
 * @param {string} label @param {string} title @param {() => void} onclick @param {Node[]} more
 * @returns {HTMLButtonElement}
 */
function button(label, title, onclick, ...more) {
  const name = more.length ? null : title;
  return el("button", { type: "button", title, "aria-label": name, onclick }, label, ...more);
}

/** @param {StepView} view @returns {HTMLElement[]} */
function facts(view) {
  const { fingerprint: print } = view;
  return [
    fact("probability", `${percent(view.probability)} → ${percent(view.final)}`,
      "under the model's own logits → among the survivors of the chain"),
    fact("surprise", `${view.bits.toFixed(2)} bits`, "minus the logarithm of the model's probability"),
    fact("rank", thousands(view.rank), "of all tokens; 1 is the likeliest"),
    fact("entropy", `${view.entropy.toFixed(2)} bits`, "of the model's distribution"),
    fact("position", thousands(view.position), "of the token in the text, prompt included"),
    ...(view.kvTokens === null ? [] : [fact("kv", `${thousands(view.kvTokens)} · ${memory(view.kvBytes)}`,
      "tokens whose keys and values were read, and their bytes")]),
    fact("ms", Object.values(view.ms).map((ms) => ms.toFixed(1)).join(" + "),
      Object.keys(view.ms).join(" + ")),
    fact("fingerprint", `${print.slice(0, 4)}…${print.slice(-4)}`, print),
  ];
}

/** @param {string} name @param {string} value @param {string} title @returns {HTMLElement} */
const fact = (name, value, title) =>
  el("div", { title }, el("dt", {}, name), el("dd", { class: "mono" }, value));

customElements.define("step-facts", StepFacts);
