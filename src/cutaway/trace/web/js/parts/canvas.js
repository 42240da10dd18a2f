/**
 * A canvas: its cells as they are after a pass, a bar of the passes, and the life of a cell.
 *
 * Draws what figures/canvas.js finds. The cell that is chosen is the run's step.
 */

import { canvasOf, ruleInWords } from "../figures/canvas.js";
import { cellStory } from "./canvas-cell.js";
import { el, keepInSight, setAttributes, replace, setText } from "./dom.js";
import { LN2, inText, percent, probability, thousands } from "../figures/numbers.js";
import { View } from "./view.js";
/** @import { Canvas, Fate } from "../figures/canvas.js" */
/** @import { Trace } from "../state/trace.js" */

const NONE = "This text was written from left to right, and has no canvas: a model of diffusion, or an "
  + "encoder with a mask, writes one; “Canvas” among the settings says how.";
const WHOLE = 8000; // milliseconds in which all passes are played
const SLOWEST = 600;
const FASTEST = 40;

/** @type {[Fate, string][]} what the looks of a cell mean */
const LEGEND = [["kept", "stands"], ["fresh", "revealed in this pass"], ["edited", "another token took the place"],
  ["again", "masked again"], ["masked", "masked; the best guess"], ["later", "not begun"]];

class CanvasPanel extends View {
  none = el("p", { class: "faint" }, NONE);
  bar = el("input", { type: "range", min: 0, step: 1, "aria-label": "Pass", oninput: () => this.go(Number(this.bar.value)) });
  play = el("button", { type: "button", onclick: () => this.playOrStop() }, "Play");
  where = el("strong", { class: "where" });
  pass = el("dl");
  cells = el("div", { class: "cells", tabindex: 0, role: "group",
    "aria-label": "The canvas, cell by cell; arrows choose one, p goes to the next pass" });
  story = el("section", { "aria-label": "The chosen cell" });
  totals = el("dl");
  content = el("div", {},
    el("div", { class: "row passes" }, this.play, this.bar, this.where), this.pass, this.cells, legend(),
    this.story, el("h3", {}, "All passes"), this.totals);
  /** @type {HTMLElement[]} */
  made = [];
  /** @type {Trace | null} */
  shown = null;
  drawn = "";
  /** @type {HTMLElement | undefined} */
  marked;
  timer = 0;

  build() {
    this.cells.addEventListener("click", (event) => this.clicked(event));
    replace(this, this.none, this.content);
  }

  draw() {
    if (this.hidden) return this.halt();
    const { run, state } = this.store;
    const canvas = run?.trace.passes.length ? canvasOf(run.trace) : null;
    this.none.hidden = Boolean(canvas);
    this.content.hidden = !canvas;
    setText(this.none, run?.live && run.trace.known?.decoder ? "The first pass is being computed." : NONE);
    if (!run || !canvas) return;
    const last = run.trace.passes.length - 1;
    const at = Math.min(state.pass ?? last, last);
    const now = JSON.stringify([run.id, at, last, state.step, run.live, state.about !== null]);
    if (now === this.drawn && run.trace === this.shown) return;
    this.drawn = now;
    if (run.trace !== this.shown) this.begin(run.trace, canvas);
    setAttributes(this.bar, { max: last, "aria-valuetext": `pass ${at + 1} of ${last + 1}` });
    this.bar.value = String(at);
    setText(this.where, `pass ${at + 1} of ${last + 1}${run.live ? " …" : ""}`);
    this.drawCells(run.trace, canvas, at);
    replace(this.pass, ...passFacts(run.trace, canvas, at));
    replace(this.totals, ...totalFacts(run.trace, canvas));
    this.mark(state.step);
    const fork = state.about && !run.live
      ? (/** @type {number} */ token) => this.session.forkCanvas(run, state.step, token, at) : null;
    replace(this.story, ...cellStory(run.trace, canvas, state.step, at, (pass) => this.go(pass), fork));
  }

  /** @param {Trace} trace @param {Canvas} canvas */
  begin(trace, canvas) {
    if (this.shown) this.halt();
    this.shown = trace;
    this.marked = undefined;
    this.made = Array.from({ length: canvas.length }, () => el("span", { class: "token cell" }));
    replace(this.cells, ...this.made);
  }

  /** @param {Trace} trace @param {Canvas} canvas @param {number} at */
  drawCells(trace, canvas, at) {
    this.made.forEach((cell, i) => {
      const { fate, token, seen } = canvas.shown(at, i);
      const name = token === null ? "" : trace.nameOf(token);
      const text = inText(name).replaceAll(" ", fate === "kept" ? "\u00a0" : "␣"); // what stands is read
      setText(cell, text || "·");
      const guess = fate === "masked" || fate === "again";
      const likely = seen?.likely_logprob[0];
      setAttributes(cell, { "data-fate": fate, title: `cell ${i}: ${LOOKS.get(fate)}`
        + (guess && likely !== undefined ? `, ${percent(probability(likely))}` : "") });
    });
  }

  /** @param {number} cell */
  mark(cell) {
    const chosen = this.made[cell];
    if (chosen === this.marked) return;
    this.marked?.removeAttribute("aria-current");
    this.marked = chosen;
    chosen?.setAttribute("aria-current", "true");
    if (chosen) keepInSight(this.cells, chosen, { air: 8 });
  }

  /** @param {Event} event */
  clicked(event) {
    const at = this.made.indexOf(/** @type {HTMLElement} */ (/** @type {Element} */ (event.target).closest(".cell")));
    if (at >= 0) this.store.goTo(at);
  }

  /** @param {number} pass the last one is shown until there is another, and then that */
  go(pass) {
    const { run } = this.store;
    const last = (run?.trace.passes.length ?? 1) - 1;
    this.store.set({ pass: run?.live && pass >= last ? null : pass });
  }

  // -- play ---------------------------------------------------------------------------------------

  playOrStop() {
    if (this.timer) return this.halt();
    const passes = this.store.run?.trace.passes.length ?? 0;
    const at = this.store.state.pass ?? passes - 1;
    if (at >= passes - 1) this.store.set({ pass: 0 });
    this.timer = setInterval(() => this.advance(), Math.min(SLOWEST, Math.max(FASTEST, WHOLE / passes)));
    setText(this.play, "Pause");
  }

  advance() {
    const last = (this.store.run?.trace.passes.length ?? 0) - 1;
    const next = (this.store.state.pass ?? last) + 1;
    if (next >= last) this.halt();
    this.go(Math.min(next, last));
  }

  halt() {
    clearInterval(this.timer);
    this.timer = 0;
    setText(this.play, "Play");
  }
}

const LOOKS = new Map(LEGEND);

/** @returns {HTMLElement} */
const legend = () => el("p", { class: "legend faint", "aria-hidden": "true" },
  ...LEGEND.flatMap(([fate, words]) => [el("span", { class: "token cell", "data-fate": fate }, "a"), words]));

/** @param {Trace} trace @param {Canvas} canvas @param {number} at @returns {HTMLElement[]} */
function passFacts(trace, canvas, at) {
  const pass = trace.passes[at];
  if (!pass) return [];
  const fates = pass.cells.map((seen) => canvas.fate(at, seen.position - canvas.first));
  const count = (/** @type {Fate} */ fate) => fates.filter((one) => one === fate).length;
  const masked = canvas.stands[at]?.reduce((sum, token) => sum + Number(token < 0), 0) ?? 0;
  const next = canvas.next(at);
  return [
    fact("revealed", String(count("fresh")), "cells in which this pass put a token"),
    count("edited") > 0 && fact("edited", String(count("edited")), "cells in which another token took the place"),
    pass.masked_again.length > 0 && fact("masked again", String(pass.masked_again.length), "cells that lost their token"),
    fact("masked still", thousands(masked), "of the whole canvas, after this pass"),
    fact("rows", thousands(pass.rows), "of the model that were computed"),
    fact("bound", `${(pass.bound / LN2).toFixed(2)} bits`,
      "the most that revealing these cells together, and not one after another, loses on average"),
    fact("ms", Object.values(pass.ms).map((ms) => ms.toFixed(1)).join(" + "), Object.keys(pass.ms).join(" + ")),
    next && fact("next in line", `cell ${next.position - canvas.first}: ${inText(trace.nameOf(next.token_id))}`,
      `first in the order of those that were not revealed; what the order follows: ${next.figure.toFixed(4)}`),
  ].filter((one) => one instanceof HTMLElement);
}

/** @param {Trace} trace @param {Canvas} canvas @returns {HTMLElement[]} */
function totalFacts(trace, canvas) {
  const { passes, rows, perPass, bound, order } = canvas.totals;
  const { decoder } = trace.head;
  const sees = decoder?.attention === "bidirectional" ? "everything" : decoder?.attention === "causal" ? "what is before it"
    : `to the end of its block of ${decoder?.attention}`;
  return [
    fact("rule", ruleInWords(decoder?.rule ?? {}), "the settings that are not as usual"),
    fact("passes", thousands(passes), "each a run of the model"),
    fact("rows", thousands(rows), "that all passes computed"),
    fact("tokens per pass", perPass.toFixed(2), "of those that stand; left to right it is 1"),
    fact("bound", `${(bound / LN2).toFixed(2)} bits`, "the most that revealing together loses on average, of all passes"),
    fact("order", order === null ? "–" : order.toFixed(2).replace("-", "−"),
      "Kendall’s τ of the order of revealing: 1 is from left to right, −1 from right to left, 0 any"),
    fact("a token sees", sees, "of the text, as this model was trained"),
  ];
}

/** @param {string} name @param {string} value @param {string} title @returns {HTMLElement} */
const fact = (name, value, title) =>
  el("div", { title }, el("dt", {}, name), el("dd", { class: "mono" }, value));

customElements.define("canvas-panel", CanvasPanel);
