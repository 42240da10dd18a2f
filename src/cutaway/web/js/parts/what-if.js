/**
 * What if: other settings at the selected step, answered from its record while a slider moves, and
 * run from there when asked. Every figure here is an estimate, and is marked as one.
 */

import { el, replace } from "./dom.js";
import { estimate, settingsOf } from "../figures/estimate.js";
import { percent, short, thousands, visible } from "../figures/numbers.js";
import { View } from "./view.js";
/** @import { Trace, Step } from "../state/trace.js" */
/** @import { Estimate, Settings } from "../figures/estimate.js" */

/** @typedef {"temperature" | "top_p" | "top_k" | "min_p"} Name */
/** @type {[Name, string, number, number, number][]} setting, label, from, to, by */
const SLIDERS = [
  ["temperature", "temperature", 0, 2, 0.05],
  ["top_p", "top-p", 0.01, 1, 0.01],
  ["top_k", "top-k (0: all)", 0, 100, 1],
  ["min_p", "min-p", 0, 0.5, 0.01],
];

const HEADINGS = ["token", "recorded", "estimate", "tick: recorded", "with these settings"];

export class WhatIf extends View {
  /** @type {Map<Name, {input: HTMLInputElement, output: HTMLOutputElement}>} */
  sliders = new Map();
  winner = el("p", { class: "winner", "aria-live": "polite" });
  body = el("tbody");
  reset = el("button", { type: "button", onclick: () => this.here.set({ whatIf: null }) }, "As recorded");
  start = el("button", { type: "button", class: "primary", onclick: () => this.runIt() }, "Run it");
  /** @type {string} what is shown: nothing is drawn twice */
  shown = "";

  build() {
    const fields = SLIDERS.map((slider) => this.slider(...slider));
    const head = el("tr", {}, ...HEADINGS.map((label) => el("th", { scope: "col" }, label)));
    const table = el("table", { class: "candidates" }, el("thead", {}, head), this.body);
    replace(this,
      el("p", { class: "faint" }, el("strong", { class: "estimate" }, "estimate"),
        " This step with other settings, from its record alone. The tokens on record are known; of the",
        " others only how many lie how deep. So a probability is an interval, and it lies within."),
      el("div", { class: "sliders" }, ...fields),
      el("div", { class: "row" }, this.start, this.reset, this.winner),
      el("div", { class: "scrolling", tabindex: 0, role: "region", "aria-label": "Estimates" }, table));
  }

  /**
   * @param {Name} name @param {string} label @param {number} min @param {number} max
   * @param {number} step @returns {HTMLElement}
   */
  slider(name, label, min, max, step) {
    const input = el("input", { type: "range", min, max, step,
      oninput: () => this.here.set({ whatIf: { ...this.settings, [name]: Number(input.value) } }) });
    const output = el("output", { class: "mono" });
    this.sliders.set(name, { input, output });
    return el("label", {}, el("span", {}, label, output), input);
  }

  /** @returns {Settings} what is asked: the run's own settings where nothing was moved */
  get settings() {
    const { run, state } = this.here;
    return run ? { ...settingsOf(run.trace), ...state.whatIf } : { temperature: 1, top_p: 1, top_k: 0, min_p: 0 };
  }

  draw() {
    if (this.hidden) return;
    const { run, state } = this.here;
    const step = run?.trace.steps[state.step];
    for (const part of this.children) if (part instanceof HTMLElement) part.hidden = !step;
    if (!run || !step) return;
    const { settings } = this;
    const shown = JSON.stringify([run.id, step.index, settings, state.about === null]);
    if (shown === this.shown) return;
    this.shown = shown;
    for (const [name, slider] of this.sliders) show(slider, settings[name]);
    this.reset.disabled = state.whatIf === null;
    this.start.hidden = state.about === null;
    const found = estimate(run.trace, step, settings);
    replace(this.winner, ...winnerOf(run.trace, step, found, settings.temperature > 0));
    replace(this.body, ...estimates(run.trace, step, found));
  }

  /** The whole run with these settings and the same luck, from this step. */
  runIt() {
    const { run, state } = this.here;
    if (!run) return;
    const { settings } = this;
    const request = this.runs.continued(run, run.trace.outputIds.slice(0, state.step), settings);
    const changed = SLIDERS.filter(([name]) => settings[name] !== settingsOf(run.trace)[name]);
    const named = changed.map(([name]) => `${name.replace("_", "-")} ${short(settings[name])}`);
    const name = `${named.join(", ") || "again"} from ${state.step}`;
    this.runs.start(request, { parent: run.id, at: state.step, name });
  }
}

/** @param {{input: HTMLInputElement, output: HTMLOutputElement}} slider @param {number} value */
function show({ input, output }, value) {
  if (value > Number(input.max)) input.max = String(value);
  if (Number(input.value) !== value) input.value = String(value);
  output.textContent = short(value);
}

/**
 * @param {Trace} trace @param {Step} step @param {Estimate} found @param {boolean} drawn with luck
 * @returns {(Node | string)[]} who wins, as far as it can be told
 */
function winnerOf(trace, step, { leader, certain, rivals }, drawn) {
  if (leader === null) return ["Who would win cannot be told from the record."];
  const name = el("span", { class: "token picked" }, visible(trace.nameOf(leader)));
  if (certain) {
    const again = leader === step.own ? ", as before" : "";
    return [drawn ? "With the same luck " : "Without luck ", name, ` wins${again}: certain.`];
  }
  const why = rivals ? "a token that is not on record may win" : "whether it survives is not certain";
  return ["Undecided: ", name, ` leads of those on record, but ${why}.`];
}

/** @param {Trace} trace @param {Step} step @param {Estimate} found @returns {HTMLElement[]} rows */
function estimates(trace, step, { chances, others, leader }) {
  const known = step.candidates.map((c) => {
    const { low, high, fate } = chances.get(c.id) ?? { low: 0, high: 0, fate: "out" };
    const before = c.final_logprob === null ? null : Math.exp(Math.min(c.final_logprob, 0));
    return { id: c.id, name: visible(trace.nameOf(c.id)), before, low, high, fate };
  });
  const shown = known.filter(({ before, fate }) => before !== null || fate !== "out");
  const gone = known.length - shown.length;
  const most = Math.max(...known.map(({ before, high }) => Math.max(before ?? 0, high)));
  const rest = trace.head.vocab_size - known.length;
  return [
    ...shown.map(({ id, name, before, low, high, fate }) =>
      row(el("span", { class: "token" }, name), before, low, high, most, FATES[fate] ?? "", id === leader)),
    ...(gone ? [row(`${gone} more on record`, null, 0, 0, most, "removed, as before", false)] : []),
    row(`${thousands(rest)} others`, othersBefore(step), others[0], others[1], most, "", false),
  ];
}

/** @type {Record<string, string>} */
const FATES = { in: "survives", maybe: "may survive", out: "removed" };

/** @param {Step} step @returns {number} what was left to those who are not on record */
const othersBefore = (step) =>
  Math.max(0, 1 - step.candidates.reduce((all, c) =>
    all + (c.final_logprob === null ? 0 : Math.exp(c.final_logprob)), 0));

/**
 * @param {Node | string} name @param {number | null} before @param {number} low @param {number} high
 * @param {number} most @param {string} fate @param {boolean} leads @returns {HTMLElement}
 */
function row(name, before, low, high, most, fate, leads) {
  const left = (/** @type {number} */ share) => `${Math.min(100, (100 * share) / most)}%`;
  return el("tr", { class: leads ? "chosen" : null },
    el("th", { scope: "row" }, name),
    el("td", { class: "mono figure" }, percent(before)),
    el("td", { class: "mono figure" }, interval(low, high)),
    el("td", {}, el("div", { class: "interval", "aria-hidden": "true" },
      el("i", { class: "open", style: { width: left(high) } }),
      el("i", { class: "sure", style: { width: left(low) } }),
      before === null ? null : el("b", { style: { left: left(before) } }))),
    el("td", { class: "faint" }, fate));
}

/** @param {number} low @param {number} high @returns {string} one figure where they read the same */
function interval(low, high) {
  if (high === 0) return "–";
  const [from, to] = [percent(low), percent(high)];
  return from === to ? from : `${from.replace("%", "")} … ${to}`;
}

customElements.define("what-if", WhatIf);
