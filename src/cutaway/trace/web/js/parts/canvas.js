/**
 * The panel Canvas: the cells after a pass, a slider of the passes, and the history of the selected cell.
 *
 * Draws what figures/canvas.js computes. The selected cell is the step of the store.
 */

import { canvasOf, ruleInWords } from "../figures/canvas.js";
import { cellStory } from "./canvas-cell.js";
import { button, el, fact, keepInSight, setAttributes, replace, setText } from "./dom.js";
import { LN2, countFrom1, escapeInvisible, percent, probability, thousands } from "../figures/numbers.js";
import { View } from "./view.js";
/** @import { Canvas, CellState } from "../figures/canvas.js" */
/** @import { Trace } from "../state/trace.js" */

const NONE = "This text was generated from left to right and has no canvas. Diffusion models and masked language "
  + "models fill one.";
const WHOLE = 8000; // milliseconds for playing all passes
const SLOWEST = 600;
const FASTEST = 40;

/** @type {[CellState, string][]} the legend of a canvas of masks */
const MASKS = [["kept", "revealed before"], ["fresh", "revealed in this pass"], ["edited", "replaced in this pass"],
  ["again", "masked again"], ["masked", "masked (shown: its likeliest token)"], ["later", "not computed yet"]];
/** @type {[CellState, string][]} the legend of a canvas of noise */
const NOISE = [["kept", "kept"], ["fresh", "kept from this pass on"], ["edited", "kept with another token"],
  ["again", "noise again"], ["masked", "noise (shown: the random token that comes next)"], ["later", "not computed yet"]];
/** @param {Canvas} canvas */
const legendOf = (canvas) => (canvas.isNoise ? NOISE : MASKS);

class CanvasPanel extends View {
  none = el("p", { class: "faint" }, NONE);
  bar = el("input", { type: "range", min: 0, step: 1, "aria-label": "Pass", oninput: () => this.go(Number(this.bar.value)) });
  play = button("Play", () => this.playOrStop());
  place = el("strong", { class: "where" });
  pass = el("dl");
  cells = el("div", { class: "cells", tabindex: 0, role: "group",
    "aria-label": "The canvas, cell by cell; arrow keys choose one, p goes to the next pass" });
  story = el("section", { "aria-label": "The chosen cell" });
  totals = el("dl");
  legend = el("p", { class: "legend faint", "aria-hidden": "true" });
  content = el("div", {},
    el("div", { class: "row passes" }, this.play, this.bar, this.place), this.pass, this.cells, this.legend,
    this.story, el("h3", {}, "All passes"), this.totals);
  /** @type {HTMLElement[]} */
  cellElements = [];
  /** @type {Trace | null} */
  shownTrace = null;
  drawnKey = "";
  /** @type {HTMLElement | undefined} */
  marked;
  timer = 0;

  build() {
    this.cells.addEventListener("click", (event) => this.handleClick(event));
    replace(this, this.none, this.content);
  }

  draw() {
    if (this.hidden) return this.halt();
    const { run, state } = this.store;
    const canvas = run?.trace.passes.length ? canvasOf(run.trace) : null;
    this.none.hidden = Boolean(canvas) || !run;
    this.content.hidden = !canvas;
    setText(this.none, run?.live && run.trace.known?.decoder ? "The first pass is being computed." : NONE);
    if (!run || !canvas) return;
    const last = run.trace.passes.length - 1;
    const at = Math.min(state.pass ?? last, last);
    const now = JSON.stringify([run.id, at, last, state.step, run.live, state.about !== null]);
    if (now === this.drawnKey && run.trace === this.shownTrace) return;
    this.drawnKey = now;
    if (run.trace !== this.shownTrace) this.begin(run.trace, canvas);
    setAttributes(this.bar, { max: last, "aria-valuetext": `pass ${countFrom1(at)} of ${last + 1}` });
    this.bar.value = String(at);
    setText(this.place, `pass ${countFrom1(at)} of ${last + 1}${run.live ? " …" : ""}`);
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
    if (this.shownTrace) this.halt();
    this.shownTrace = trace;
    this.marked = undefined;
    this.cellElements = Array.from({ length: canvas.length }, () => el("span", { class: "token cell" }));
    replace(this.cells, ...this.cellElements);
    replace(this.legend, ...legendOf(canvas).flatMap(([state, words]) =>
      [el("span", { class: "token cell", "data-fate": state }, "a"), words]),
    ...(canvas.isNoise ? [el("span", { class: "token cell entropy" }, "a"), "entropy"] : []));
  }

  /** @param {Trace} trace @param {Canvas} canvas @param {number} at */
  drawCells(trace, canvas, at) {
    const states = new Map(legendOf(canvas));
    const most = canvas.isNoise ? canvas.largestEntropy : 1;
    this.cellElements.forEach((cell, i) => {
      const { state, token, seen } = canvas.cellAfter(at, i);
      const name = token === null ? "" : trace.nameOf(token);
      const text = escapeInvisible(name).replaceAll(" ", state === "kept" ? "\u00a0" : "␣"); // a space of the text looks like one
      setText(cell, text || "·");
      const isMasked = state === "masked" || state === "again";
      const likely = seen?.likely_logprob[0];
      setAttributes(cell, { "data-fate": state, title: `cell ${countFrom1(i)}: ${states.get(state)}`
        + (canvas.isNoise && seen ? `, ${(seen.entropy / LN2).toFixed(2)} bits of entropy` : "")
        + (isMasked && !canvas.isNoise && likely !== undefined ? `, ${percent(probability(likely))}` : "") });
      cell.classList.toggle("entropy", canvas.isNoise);
      cell.style.setProperty("--entropy", `${100 * (seen?.entropy ?? 0) / most}%`);
    });
  }

  /** @param {number} cell */
  mark(cell) {
    const element = this.cellElements[cell];
    if (element === this.marked) return;
    this.marked?.removeAttribute("aria-current");
    this.marked = element;
    element?.setAttribute("aria-current", "true");
    if (element) keepInSight(this.cells, element, { air: 8 });
  }

  /** @param {Event} event */
  handleClick(event) {
    const at = this.cellElements.indexOf(/** @type {HTMLElement} */ (/** @type {Element} */ (event.target).closest(".cell")));
    if (at >= 0) this.store.goTo(at);
  }

  /** @param {number} pass the last one of a live run stays the last as passes are added */
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

/** @param {Trace} trace @param {Canvas} canvas @param {number} at @returns {HTMLElement[]} */
function passFacts(trace, canvas, at) {
  const pass = trace.passes[at];
  if (!pass) return [];
  const time = Object.values(pass.ms).reduce((sum, ms) => sum + ms, 0); // 0: the trace was written without times
  const states = pass.cells.map((seen) => canvas.state(at, seen.position - canvas.first));
  const count = (/** @type {CellState} */ state) => states.filter((other) => other === state).length;
  const masked = canvas.tokens[at]?.reduce((sum, token) => sum + Number(token < 0), 0) ?? 0;
  const next = canvas.next(at);
  const [again, still] = canvas.isNoise ? ["noise again", "still noise"] : ["masked again", "still masked"];
  const entropy = pass.cells.reduce((sum, seen) => sum + seen.entropy, 0) / pass.cells.length;
  return [
    fact("revealed", String(count("fresh")), "cells in which this pass put a token"),
    canvas.choosesAnew && fact("kept", String(count("kept")), "cells that the pass chose again, with the same token"),
    canvas.choosesAnew && fact("mean entropy", `${(entropy / LN2).toFixed(3)} bits`, "of the block's cells, after the sampling stages"),
    count("edited") > 0 && fact("edited", String(count("edited")), "cells whose token was replaced"),
    pass.masked_again.length > 0 && fact(again, String(pass.masked_again.length), "cells whose token is gone"),
    fact(still, thousands(masked), "cells of the whole canvas, after this pass"),
    fact("positions computed", thousands(pass.rows), "in this pass, by the model"),
    !canvas.choosesAnew && fact("loss at most", `${(pass.bound / LN2).toFixed(2)} bits`,
      "an upper bound, on average, of what is lost by revealing these cells together and not one by one"),
    ...(time ? [fact("time", `${time.toFixed(1)} ms`,
      Object.entries(pass.ms).map(([phase, ms]) => `${phase} ${ms.toFixed(1)} ms`).join(", "))] : []),
    next && fact("next in order", `cell ${countFrom1(next.position - canvas.first)}: ${escapeInvisible(trace.nameOf(next.token_id))}`,
      `the first cell in the order of the rule that was not revealed; its figure: ${next.figure.toFixed(4)}`),
  ].filter((element) => element instanceof HTMLElement);
}

/** @param {Trace} trace @param {Canvas} canvas @returns {HTMLElement[]} */
function totalFacts(trace, canvas) {
  const { passes, rows, perPass, bound, order } = canvas.totals;
  const { decoder } = trace.head;
  const sees = decoder?.attention === "bidirectional" ? "everything" : decoder?.attention === "causal" ? "earlier tokens"
    : decoder?.attention === "canvas" ? "earlier tokens, and all of the block" : `up to the end of its block of ${decoder?.attention}`;
  return [
    fact("rule", ruleInWords(decoder?.rule ?? {}), "settings that differ from the defaults"),
    fact("passes", thousands(passes), "forward passes of the model"),
    fact("positions computed", thousands(rows), "in all passes"),
    fact("tokens per pass", perPass.toFixed(2), "left-to-right generation has 1"),
    ...(canvas.choosesAnew ? [] // since its last tokens are the likeliest ones, and not those that were revealed together
      : [fact("loss at most", `${(bound / LN2).toFixed(2)} bits`, "an upper bound, on average, of what is lost by revealing cells together, over all passes")]),
    fact("Kendall’s τ", order === null ? "–" : order.toFixed(2).replace("-", "−"),
      "the order of revealing: 1 is left to right, −1 right to left, 0 neither"),
    fact("attention", sees, "the positions that a token attends to"),
  ];
}

customElements.define("canvas-panel", CanvasPanel);
