/**
 * The token strip: the tokens of the text as it is written, the background of each its surprise, or
 * what the panel Inside tints it by. Where the run has branches, their texts are a map (map.js).
 */

import { Arrival } from "./arrival.js";
import { chip } from "./chip.js";
import "./end-line.js";
import { el, keepInSight, replace, scale, setAttributes, setText } from "./dom.js";
import { Flow } from "./flow.js";
import { inherits } from "../figures/branches.js";
import { linesOf } from "../figures/lines.js";
import { TextMap } from "./map.js";
import { visible } from "../figures/numbers.js";
import { insertBreaks, prompt, promptTokens } from "./prompt.js";
import { Tint } from "./tint.js";
import { View } from "./view.js";
/** @import { Trace, Step } from "../state/trace.js" */
/** @import { Run } from "../state/store.js" */

/** A run whose text is shown, with an element for each token. @typedef {{run: Run, chips: HTMLElement[]}} Line */

const NOTHING_YET = "Write something, or open a trace. Each token appears here as it is generated, with the candidates for "
  + "its place: how likely each was, which setting removed it, and which won the draw.";

const NO_CANVAS_YET = "Write a beginning, or click one: the model fills a row of cells after it, in any order. Each cell appears here "
  + "as it is revealed.";

const MOST_TINTED = 20_000; // tokens of a prompt: an element for each of more holds the page up

class TokenStrip extends View {
  tokens = el("div", { class: "tokens", tabindex: 0, role: "group",
    "aria-label": "The text, token by token" });
  /** @type {Run | null} */
  selectedRun = null;
  /** @type {Line[]} the selected run and those beside it */
  lines = [];
  /** @type {HTMLElement[]} those of the selected run, by step */
  chips = [];
  /** @type {HTMLElement | undefined} */
  marked;
  /** @type {HTMLElement | undefined} the chip that shows another token */
  flipped;
  /** @type {Flow | null} where there is one line */
  flow = null;
  /** @type {TextMap | null} where there are several */
  map = null;

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
    const { run } = this.store;
    const failure = run?.trace.steps.length ? null : run?.error;
    this.empty.hidden = run !== null && !failure;
    setText(this.empty, failure ? `This run wrote no token: ${failure}` : invitation(this.store.state.about));
    this.classList.toggle("idle", !this.empty.hidden);
    this.choose(run);
    if (!run?.trace.known) return;
    this.grow();
    this.mark(this.store.state.step);
    this.drawFlip(run.trace.steps[this.store.state.step]);
    this.drawTint(run.trace);
    this.arrival?.draw(run.trace, this.chips);
    this.classList.toggle("arriving", this.store.state.arriving);
  }

  /** @param {Step | undefined} step while other settings draw another token, it stands in the text, and what follows is grey */
  drawFlip(step) {
    const other = this.session.whatIf.now;
    const flips = step && other?.step && other.step.sampled_id !== step.token_id;
    const element = flips ? this.marked : undefined;
    if (this.flipped !== element) {
      this.flipped?.removeAttribute("data-flip");
      this.flipped?.parentElement?.classList.remove("flips");
    }
    this.flipped = element;
    element?.parentElement?.classList.add("flips");
    if (element && other?.step) setAttributes(element, { "data-flip": visible(other.trace.nameOf(other.step.sampled_id)) });
  }

  /** @param {Run | null} run the selected one: begin again where it is another, or others are beside it */
  choose(run) {
    const { runs, panel, other } = this.store.state;
    const runLines = run?.trace.known ? linesOf(runs, run, panel === "tree" ? this.store.find(other) : null) : [];
    if (run === this.selectedRun && runLines.length === this.lines.length && runLines.every((lineRun, i) => lineRun === this.lines[i]?.run)) return;
    this.selectedRun = run;
    this.lines = runLines.map((lineRun) => ({ run: lineRun, chips: [] }));
    this.chips = this.lines.find((line) => line.run === run)?.chips ?? [];
    this.marked = undefined;
    this.tint.forget();
    replace(this.tokens);
    const selected = this.lines.findIndex((line) => line.run === run);
    this.map = this.lines.length > 1 ? new TextMap(this.tokens, this.prompt, this.lines, selected, (id) => this.store.select(id)) : null;
    this.flow = this.lines.length === 1 ? new Flow(this.tokens, this.prompt) : null;
    if (run && this.lines.length) this.showPrompt(run.trace);
  }

  /** Append the new tokens of each line; of a long text some in each frame. */
  grow() {
    const { runs } = this.store.state;
    for (const { run, chips } of this.lines) {
      for (const step of run.trace.steps.slice(chips.length, chips.length + BATCH)) {
        chips.push(chip(run.trace, step, inherits(runs, run, step.index), chips === this.chips));
      }
    }
    const whole = this.lines.every(({ run, chips }) => chips.length === run.trace.steps.length);
    if (whole) this.map?.grow(runs);
    else this.store.announce();
    const [line] = this.lines;
    if (this.flow && line) this.flow.take(line.run.trace, line.chips, this.flow.end, line.chips.length);
  }

  /** @param {Trace} trace its prompt is shown token by token while the text is tinted */
  showPrompt(trace) {
    const isTinted = this.tint.on && trace.head.prompt_token_ids.length <= MOST_TINTED;
    this.promptTokens = isTinted ? promptTokens(trace) : [];
    replace(this.prompt, ...(isTinted ? insertBreaks(trace, this.promptTokens) : [prompt(trace)]));
  }

  /** @param {Trace} trace tint it while the panel Inside is open */
  drawTint(trace) {
    const { panel } = this.store.state;
    if (this.tint.on !== (panel === "inside")) {
      this.tint.on = panel === "inside";
      this.showPrompt(trace);
      if (this.marked) keepInSight(this.tokens, this.marked, { air: AIR });
      this.tint.forget();
    }
    this.tint.show(this.tint.on ? this.session.insides.selectedInside.inside ?? null : null, this.store.selectionInside, (i) =>
      this.promptTokens[i] ?? this.chips[i - trace.head.prompt_token_ids.length]);
    this.classList.toggle("tinted", this.tint.on);
    this.tint.element.hidden = !this.tint.on;
    this.legend.hidden = this.tint.on;
  }

  /** @param {number} step */
  mark(step) {
    const element = this.chips[step];
    if (element === this.marked) return;
    this.marked?.removeAttribute("aria-current");
    this.marked = element;
    element?.setAttribute("aria-current", "step");
    if (!element) return;
    this.flow?.approach(element);
    keepInSight(this.tokens, element, { air: AIR });
  }

  /** @param {Event} event */
  handleClick(event) {
    const on = /** @type {Element} */ (event.target);
    const token = /** @type {HTMLElement | null} */ (on.closest(".chip, .aside"));
    const line = token && this.lines.find(({ chips }) => chips.includes(token));
    if (!token || !line) return;
    const step = line.chips.indexOf(token);
    const { run, state } = this.store;
    if (line.run !== run) return this.store.select(line.run.id, step);
    this.store.goTo(step);
    this.store.set({ sheet: true });
    const rival = on.closest(".ghost") && state.about && run?.trace.steps[step]?.candidates.find(({ rank }) => rank === 1);
    if (run && rival) this.session.fork(run, step, rival.id);
  }
}

/** @param {import("../state/store.js").About | null} about @returns {string} what to do while there is no text */
const invitation = (about) => (about ? (about.canvas ? NO_CANVAS_YET : NOTHING_YET) : "");

/** Tokens that a frame appends. */
const BATCH = 250;

/** Pixels to keep between the selected token and the edge. */
const AIR = 8;

customElements.define("token-strip", TokenStrip);
