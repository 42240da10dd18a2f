/**
 * What if: other settings at the selected step. The model draws the step again, with the same tokens
 * before it and the same luck, so every figure is exact; the whole run goes on from there when asked.
 */

import { labelOf, numbersOf } from "../figures/catalogue.js";
import { percent, probability, short, thousands, visible } from "../figures/numbers.js";
import { stepView } from "../figures/step-view.js";
import { sentence } from "../state/session.js";
import { el, replace } from "./dom.js";
import { View } from "./view.js";
/** @import { Param } from "../figures/catalogue.js" */
/** @import { CandidateView } from "../figures/step-view.js" */
/** @import { Trace, Step } from "../state/trace.js" */

const SLIDERS = numbersOf(() => true);
const PAUSE = 150; // milliseconds without a movement, before the model is asked
const HEADINGS = ["token", "recorded", "what if", "bar: what if, tick: recorded", "with these settings"];

/** @typedef {{input: HTMLInputElement, output: HTMLOutputElement}} Slider */

class WhatIf extends View {
  /** @type {Map<string, Slider>} */
  sliders = new Map();
  winner = el("p", { class: "winner", "aria-live": "polite" });
  body = el("tbody");
  reset = el("button", { type: "button", onclick: () => this.store.set({ whatIf: null }) }, "As recorded");
  start = el("button", { type: "button", class: "primary", onclick: () => this.runIt() }, "Run it");
  answer = new AbortController();
  timer = 0;
  /** @type {string} what is asked for or shown: nothing is asked twice */
  shown = "";

  build() {
    const fields = SLIDERS.map((param) => this.slider(param));
    const head = el("tr", {}, ...HEADINGS.map((label) => el("th", { scope: "col" }, label)));
    const table = el("table", { class: "candidates" }, el("thead", {}, head), this.body);
    replace(this,
      el("p", { class: "faint" }, "This step with other settings: the same tokens before it, the same luck,",
        " computed by the model."),
      el("div", { class: "sliders" }, ...fields),
      el("div", { class: "row" }, this.start, this.reset, this.winner),
      el("div", { class: "scrolling", tabindex: 0, role: "region", "aria-label": "What if" }, table));
  }

  /** @param {Param} param @returns {HTMLElement} */
  slider({ name, low, high, step, help }) {
    const input = el("input", { type: "range", min: low, max: high, step, title: help, "aria-label": labelOf(name),
      oninput: () => this.store.set({ whatIf: { ...this.store.state.whatIf, [name]: Number(input.value) } }) });
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
    const shown = JSON.stringify([run.id, step.index, state.whatIf, state.about === null]);
    if (shown === this.shown) return;
    this.shown = shown;
    for (const [name, slider] of this.sliders) {
      show(slider, Number(state.whatIf?.[name] ?? run.trace.head.params[name] ?? 0));
    }
    this.reset.disabled = this.start.disabled = state.whatIf === null;
    this.answer.abort();
    clearTimeout(this.timer);
    if (state.whatIf && state.about) this.timer = window.setTimeout(() => this.ask(), PAUSE);
    else this.compare(run.trace, step, run.trace, step);
  }

  /** The step with these settings, once the slider rests. */
  async ask() {
    const { run, state } = this.store;
    const step = run?.trace.steps[state.step];
    if (!run || !step || !state.whatIf) return;
    const { signal } = (this.answer = new AbortController());
    try {
      const trace = await this.session.stepWith(run, step.index, state.whatIf, signal);
      const found = trace.steps[step.index];
      if (!signal.aborted && found) this.compare(run.trace, step, trace, found);
    } catch (error) {
      if (!signal.aborted) replace(this.winner, sentence(error));
    }
  }

  /**
   * @param {Trace} trace @param {Step} step as recorded
   * @param {Trace} other @param {Step} found with other settings
   */
  compare(trace, step, other, found) {
    replace(this.winner, ...winnerOf(step, other, found));
    replace(this.body, ...rows(trace, step, other, found));
  }

  /** The whole run with these settings and the same luck, from this step. */
  runIt() {
    const { run, state } = this.store;
    if (!run || !state.whatIf) return;
    const request = this.session.continued(run, run.trace.outputIds.slice(0, state.step), state.whatIf);
    const changed = Object.entries(state.whatIf).filter(([name, value]) => value !== run.trace.head.params[name]);
    const named = changed.map(([name, value]) => `${labelOf(name)} ${short(value)}`);
    const name = `${named.join(", ") || "again"} from ${state.step}`;
    this.session.branch(run, state.step, request, name);
  }
}

/** @param {Slider} slider @param {number} value */
function show({ input, output }, value) {
  if (value > Number(input.max)) input.max = String(value);
  if (Number(input.value) !== value) input.value = String(value);
  output.textContent = short(value);
}

/**
 * @param {Step} step @param {Trace} other @param {Step} found
 * @returns {(Node | string)[]} which token is drawn, and whether the model is the recorded one
 */
function winnerOf(step, other, found) {
  if (found === step) return ["As recorded. Move a slider."];
  const name = el("span", { class: "token picked" }, visible(other.nameOf(found.sampled_id)));
  const again = found.sampled_id === step.sampled_id ? ", as before" : "";
  const same = found.logits_hash === step.logits_hash ? "" : " The logits are not those of the record: another model computed them.";
  return ["With the same luck ", name, ` is drawn${again}.${same}`];
}

/**
 * @param {Trace} trace @param {Step} step @param {Trace} other @param {Step} found
 * @returns {HTMLElement[]} a row for each candidate that could be drawn before or can be now
 */
function rows(trace, step, other, found) {
  const before = new Map(step.candidates.map((c) =>
    [c.id, c.final_logprob === null ? null : probability(c.final_logprob)]));
  const now = stepView(other, found).candidates;
  const most = Math.max(...[...before.values(), ...now.map(({ final }) => final)].map((share) => share ?? 0));
  const shown = now.filter((c) => c.final !== null || (before.get(c.id) ?? null) !== null);
  return [
    ...shown.map((c) => row(el("span", { class: "token" }, visible(c.token)),
      before.get(c.id) ?? null, c.final, most, fate(c), c.drawn)),
    row(`${thousands(trace.head.vocab_size - shown.length)} others`,
      others([...before.values()]), others(now.map(({ final }) => final)), most, "", false),
  ];
}

/** @param {(number | null)[]} shares of the candidates @returns {number} what is left to all others */
const others = (shares) => Math.max(0, 1 - shares.reduce((/** @type {number} */ sum, share) => sum + (share ?? 0), 0));

/** @param {CandidateView} c @returns {string} */
const fate = (c) => (c.removedBy ? `removed by ${c.removedBy}` : c.drawn ? "drawn" : "survives");

/**
 * @param {Node | string} name @param {number | null} before null: removed, or not on record
 * @param {number | null} now null: removed @param {number} most the longest bar @param {string} fate @param {boolean} drawn
 * @returns {HTMLElement}
 */
function row(name, before, now, most, fate, drawn) {
  const at = (/** @type {number} */ share) => `${Math.min(100, (100 * share) / most)}%`;
  return el("tr", { class: drawn ? "chosen" : null },
    el("th", { scope: "row" }, name),
    el("td", { class: "mono figure" }, percent(before)),
    el("td", { class: "mono figure" }, percent(now)),
    el("td", { class: "wide" }, el("div", { class: "share-bar", "aria-hidden": "true" },
      el("i", { style: { width: at(now ?? 0) } }),
      before === null ? null : el("b", { style: { left: at(before) } }))),
    el("td", { class: "faint" }, fate));
}

customElements.define("what-if", WhatIf);
