/**
 * The token strip, the page's river: the tokens of the text as it is written, the background of each its surprise, or
 * what the panel Inside tints it by.
 *
 * A text may have thousands of tokens. They are in chunks, so that the browser lays out only the visible ones and the
 * last one.
 */

import { Arrival } from "./arrival.js";
import { chip } from "./chip.js";
import "./end-line.js";
import { el, keepInSight, replace, scale, setAttributes, setText } from "./dom.js";
import { inherits } from "../figures/branches.js";
import { breaksBetween, visible } from "../figures/numbers.js";
import { insertBreaks, prompt, promptTokens } from "./prompt.js";
import { Tint } from "./tint.js";
import { View } from "./view.js";
/** @import { Trace, Step } from "../state/trace.js" */

/** A chunk ends at the first line break after `least` tokens, or after `most` tokens. */
const CHUNK = { least: 200, most: 400 };

const NOTHING_YET = "Write something, or open a trace. Each token appears here as it is generated, with the candidates for "
  + "its place: how likely each was, which setting removed it, and which won the draw.";

class TokenStrip extends View {
  tokens = el("div", { class: "tokens", tabindex: 0, role: "group",
    "aria-label": "The text, token by token" });
  /** @type {Trace | null} */
  shownTrace = null;
  /** @type {HTMLElement[]} by step */
  chips = [];
  /** @type {HTMLElement | undefined} */
  marked;
  /** @type {HTMLElement | undefined} the chip that shows another token */
  flipped;
  /** The last chunk, and how many tokens it has. */
  chunk = el("div");
  length = 0;

  /** The prompt, and its tokens one by one while the text is tinted. */
  prompt = el("span");
  /** @type {HTMLElement[]} */
  promptTokens = [];
  tint = new Tint();
  /** @type {Arrival | undefined} */
  arrival;
  legend = el("p", { class: "legend faint" }, "surprise: 0 bits ", scale(), " 8 bits or more");

  empty = el("p", { class: "empty", role: "status" });

  build() {
    this.tokens.addEventListener("click", (event) => this.handleClick(event));
    this.arrival = new Arrival(this.store);
    const end = /** @type {View} */ (document.createElement("end-line"));
    replace(this, this.empty, this.tokens, this.arrival.element, end, this.legend, this.tint.element);
    end.attach(this.store, this.session);
  }

  draw() {
    const trace = this.store.run?.trace ?? null;
    if (trace !== this.shownTrace) this.begin(trace);
    const failure = trace?.steps.length ? null : this.store.run?.error;
    this.empty.hidden = trace !== null && !failure;
    setText(this.empty, failure ? `This run wrote no token: ${failure}` : this.store.state.about ? NOTHING_YET : "");
    this.classList.toggle("idle", !this.empty.hidden);
    if (!trace?.known) return;
    if (!this.tokens.firstChild) {
      this.nextChunk();
      this.chunk.append(this.prompt);
      this.showPrompt(trace);
    }
    for (let i = this.chips.length; i < trace.steps.length; i++) {
      this.take(trace, /** @type {Step} */ (trace.steps[i]));
    }
    this.mark(this.store.state.step);
    this.drawFlip(trace.steps[this.store.state.step]);
    this.drawTint(trace);
    this.arrival?.draw(trace, this.chips);
    this.classList.toggle("arriving", this.store.state.arriving);
  }

  /** @param {Step | undefined} step while other settings draw another token, it stands in the text, and what follows is grey */
  drawFlip(step) {
    const other = this.session.whatIf.now;
    const flips = step && other?.step && other.step.sampled_id !== step.token_id;
    const element = flips ? this.marked : undefined;
    if (this.flipped !== element) this.flipped?.removeAttribute("data-flip");
    this.flipped = element;
    if (element && other?.step) setAttributes(element, { "data-flip": visible(other.trace.nameOf(other.step.sampled_id)) });
  }

  /** @param {Trace} trace its prompt is shown token by token while the text is tinted */
  showPrompt(trace) {
    this.promptTokens = this.tint.on ? promptTokens(trace) : [];
    replace(this.prompt, ...(this.tint.on ? insertBreaks(trace, this.promptTokens) : [prompt(trace)]));
  }

  /** @param {Trace} trace tint it while the panel Inside is open */
  drawTint(trace) {
    const { panel } = this.store.state;
    if (this.tint.on !== (panel === "inside")) {
      this.tint.on = panel === "inside";
      this.showPrompt(trace);
      this.tint.forget();
    }
    this.tint.show(this.tint.on ? this.session.insides.selectedInside.inside ?? null : null, this.store.insideSelection, (i) =>
      this.promptTokens[i] ?? this.chips[i - this.promptTokens.length]);
    this.classList.toggle("tinted", this.tint.on);
    this.tint.element.hidden = !this.tint.on;
    this.legend.hidden = this.tint.on;
  }

  /** @param {Trace | null} trace */
  begin(trace) {
    this.shownTrace = trace;
    this.chips = [];
    this.marked = undefined;
    this.tint.forget();
    replace(this.tokens);
  }

  /** @param {Trace} trace @param {Step} step append its chip, in a new line where the text has one */
  take(trace, step) {
    const { run, state } = this.store;
    const element = chip(trace, step, run !== null && inherits(state.runs, run, step.index));
    const before = trace.steps[step.index - 1];
    const breaks = before !== undefined && breaksBetween(trace.nameOf(before.token_id), trace.nameOf(step.token_id));
    if (this.length >= (breaks ? CHUNK.least : CHUNK.most)) this.nextChunk();
    else if (breaks) this.chunk.append(el("br"));
    this.chips.push(element);
    this.chunk.append(element);
    this.length += 1;
  }

  nextChunk() {
    this.chunk = el("div", { class: "chunk" });
    this.length = 0;
    this.tokens.append(this.chunk);
  }

  /** @param {number} step */
  mark(step) {
    const element = this.chips[step];
    if (element === this.marked) return;
    this.marked?.removeAttribute("aria-current");
    this.marked = element;
    element?.setAttribute("aria-current", "step");
    if (element) keepInSight(this.tokens, element, { air: AIR });
  }

  /** @param {Event} event */
  handleClick(event) {
    const on = /** @type {Element} */ (event.target);
    const step = this.chips.indexOf(/** @type {HTMLElement} */ (on.closest(".chip")));
    if (step < 0) return;
    this.store.goTo(step);
    this.store.set({ sheet: true });
    const { run, state } = this.store;
    const token = on.closest(".ghost") && state.about && run?.trace.steps[step]?.candidates.find(({ rank }) => rank === 1);
    if (run && token) this.session.fork(run, step, token.id);
  }
}

/** Pixels to keep between the selected token and the edge. */
const AIR = 8;

customElements.define("token-strip", TokenStrip);
