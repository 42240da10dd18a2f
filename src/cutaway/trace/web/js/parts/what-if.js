/**
 * The panel "What if": the selected step with other settings. The model computes it again with the same tokens before
 * it and the same luck, so that every figure is exact; "Run it" continues the run from there.
 */

import { labelOf, numbersOf, usual } from "../figures/catalogue.js";
import { percent, short, thousands, visible } from "../figures/numbers.js";
import { isGreedy } from "../figures/endings.js";
import { stepView } from "../figures/step-view.js";
import { button, el, figure, headRow, morph, replace, scrolling, setText, token } from "./dom.js";
import { View } from "./view.js";
/** @import { Param } from "../figures/catalogue.js" */
/** @import { CandidateView } from "../figures/step-view.js" */
/** @import { Trace, Step } from "../state/trace.js" */

const SLIDERS = numbersOf(() => true);
const FOLDED = SLIDERS.filter(({ name }) => !usual.includes(name));
const OPEN = usual.flatMap((name) => SLIDERS.find((param) => param.name === name) ?? []);
const HEADINGS = ["token", "recorded", "what if", "bar: what if, tick: recorded", "result"];

/** @typedef {{input: HTMLInputElement, output: HTMLOutputElement}} Slider */

class WhatIf extends View {
  /** @type {Map<string, Slider>} */
  sliders = new Map();
  winner = el("p", { class: "winner", "aria-live": "polite" });
  body = el("tbody");
  reset = button("As recorded", () => this.store.set({ whatIf: null }));
  changes = el("span", { class: "faint" });
  folded = el("details", {}, el("summary", {}, "More settings", this.changes));
  start = button("Run it", () => this.session.runWhatIf(), { class: "primary" });

  build() {
    this.folded.append(this.sliderGrid(FOLDED));
    const table = el("table", { class: "candidates" }, headRow(...HEADINGS), this.body);
    replace(this,
      el("p", { class: "faint" }, "The model computes this step with other settings, the same tokens before it and the same luck."),
      this.sliderGrid(OPEN), this.folded,
      el("div", { class: "row" }, this.start, this.reset, this.winner),
      scrolling("What if", table));
  }

  /** @param {Param[]} params @returns {HTMLElement} */
  sliderGrid(params) {
    return el("div", { class: "sliders" }, ...params.map((param) => this.slider(param)));
  }

  /** @param {Param} param @returns {HTMLElement} */
  slider({ name, low, high, step, help }) {
    const input = el("input", { type: "range", min: low, max: high, step, title: help, "aria-label": labelOf(name),
      oninput: () => this.session.whatIf.set(name, Number(input.value)) });
    const output = el("output", { class: "mono" });
    this.sliders.set(name, { input, output });
    return el("label", {}, el("span", {}, labelOf(name), output), input);
  }

  draw() {
    if (this.hidden) return;
    const { run, state } = this.store;
    const step = run?.trace.steps[state.step];
    for (const part of this.children) if (part instanceof HTMLElement) part.hidden = !step;
    if (!run || !step) return;
    for (const [name, slider] of this.sliders) {
      show(slider, Number(state.whatIf?.[name] ?? run.trace.head.params[name] ?? 0));
    }
    const changes = FOLDED.filter(({ name }) => name in (state.whatIf ?? {})).length;
    setText(this.changes, changes ? ` · ${changes} changed` : "");
    this.reset.disabled = this.start.disabled = state.whatIf === null;
    const other = this.session.whatIf.now ?? { trace: run.trace, step, isExact: true, error: null };
    if (other.error) setText(this.winner, other.error);
    else if (other.step && other.isExact) this.compare(run.trace, step, other.trace, other.step);
  }

  /**
   * @param {Trace} trace @param {Step} step as recorded
   * @param {Trace} other @param {Step} otherStep with other settings
   */
  compare(trace, step, other, otherStep) {
    morph(this.winner, el("p", { class: "winner", "aria-live": "polite" }, ...winnerOf(step, other, otherStep)));
    morph(this.body, el("tbody", {}, ...rows(trace, step, other, otherStep)));
  }
}

/** @param {Slider} slider @param {number} value */
function show({ input, output }, value) {
  if (value > Number(input.max)) input.max = String(value);
  if (Number(input.value) !== value) input.value = String(value);
  output.textContent = short(value);
}

/**
 * @param {Step} step @param {Trace} other @param {Step} otherStep
 * @returns {(Node | string)[]} which token is drawn, and whether the logits are those of the record
 */
function winnerOf(step, other, otherStep) {
  if (otherStep === step) return ["As recorded: move a slider."];
  const name = el("span", { class: "token picked" }, visible(other.nameOf(otherStep.sampled_id)));
  const again = otherStep.sampled_id === step.sampled_id ? ", as before" : "";
  const same = otherStep.logits_hash === step.logits_hash ? "" : " The logits differ from the record: another model computed them.";
  if (isGreedy(other)) return [name, ` is the likeliest${again}: temperature 0 takes it, without luck.${same}`];
  return ["With the same luck ", name, ` is drawn${again}.${same}`];
}

/**
 * @param {Trace} trace @param {Step} step @param {Trace} other @param {Step} otherStep
 * @returns {HTMLElement[]} a row for each candidate that could be drawn before or can be now
 */
function rows(trace, step, other, otherStep) {
  const before = new Map(stepView(trace, step).candidates.map(({ id, final }) => [id, final]));
  const now = stepView(other, otherStep).candidates;
  const columns = [[...before.values()], now.map(({ final }) => final)];
  const rest = columns.map(otherProbability);
  const largest = Math.max(...columns.flat().map((share) => share ?? 0), ...rest);
  const candidates = now.filter((c) => c.final !== null || (before.get(c.id) ?? null) !== null);
  return [
    ...candidates.map((c) => row(token(c.token), before.get(c.id) ?? null, c.final, largest, result(c), c.drawn)),
    row(`${thousands(trace.head.vocab_size - candidates.length)} others`,
      rest[0] ?? null, rest[1] ?? null, largest, "", false),
  ];
}

/** @param {(number | null)[]} shares of the candidates @returns {number} the probability of all other tokens */
const otherProbability = (shares) => Math.max(0, 1 - shares.reduce((/** @type {number} */ sum, share) => sum + (share ?? 0), 0));

/** @param {CandidateView} c @returns {string} */
function result(c) {
  if (c.removedBy) return `removed by ${c.removedBy}`;
  if (c.luck === null) return c.drawn ? "the likeliest: taken" : "not the likeliest";
  return c.drawn ? "drawn" : "survives";
}

/**
 * @param {Node | string} name @param {number | null} before null: removed, or not recorded
 * @param {number | null} now null: removed @param {number} largest the longest bar @param {string} outcome @param {boolean} isDrawn
 * @returns {HTMLElement}
 */
function row(name, before, now, largest, outcome, isDrawn) {
  const toPercent = (/** @type {number} */ share) => `${(100 * share) / largest}%`;
  return el("tr", { class: isDrawn ? "chosen" : null },
    el("th", { scope: "row" }, name),
    figure(percent(before)), figure(percent(now)),
    el("td", { class: "wide" }, el("div", { class: "share-bar", "aria-hidden": "true" },
      el("i", { style: { width: toPercent(now ?? 0) } }),
      before === null ? null : el("b", { style: { left: toPercent(before) } }))),
    el("td", { class: "faint" }, outcome));
}

customElements.define("what-if", WhatIf);
