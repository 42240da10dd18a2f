/**
 * The panel Step: from the model's logits through the sampling chain and luck to the token, as recorded; and a field
 * that puts another token in its place.
 */

import { tokenize } from "../state/api.js";
import { heading, rows } from "./candidates.js";
import { button, el, replace, scrolling } from "./dom.js";
import { countFrom1, visible } from "../figures/numbers.js";
import { sentence } from "../state/session.js";
import { items, removals, showProbabilities } from "./stages.js";
import { stepView } from "../figures/step-view.js";
import { View, throttle } from "./view.js";
/** @import { Step } from "../state/trace.js" */

class StepWaterfall extends View {
  name = el("span", { class: "token picked" });
  stages = el("ol", { class: "stages" });
  removed = el("div");
  bent = el("p");
  head = el("thead");
  body = el("tbody");
  message = el("output", { class: "faint" });
  input = el("input", { type: "text", size: 12, autocomplete: "off", spellcheck: "false",
    required: true, oninput: () => (this.message.textContent = "") });
  form = el("form", { class: "row", onsubmit: (/** @type {Event} */ event) => this.forceText(event) },
    el("label", { class: "row" }, "Another token:", this.input),
    el("button", {}, "Branch"), this.message);
  branch = button("Branch", () => this.fork(),
    { class: "branch", title: "continue with this token and the same luck (Enter)" });
  /** @type {Step | undefined} */
  shownStep;
  /** @type {HTMLElement[]} */
  items = [];
  /** @type {HTMLElement[]} */
  rows = [];
  /** @type {HTMLElement | undefined} */
  marked;
  pace = throttle(this, () => this.show());

  build() {
    this.body.addEventListener("click", (event) => this.handleClick(event));
    const table = el("table", { class: "candidates" },
      el("caption", { class: "visually-hidden" }, "Candidates; the up and down arrow keys choose one"),
      this.head, this.body);
    replace(this, el("div", { class: "row" }, this.name, this.stages), this.bent,
      scrolling("Candidates", table), this.removed, this.form);
  }

  draw() {
    if (this.hidden) return;
    const { run, state } = this.store;
    const step = run?.trace.steps[state.step];
    for (const part of this.children) if (part instanceof HTMLElement) part.hidden = !step;
    if (!run || !step) return;
    this.form.hidden = !state.about || step.pass_index !== undefined; // a cell has one token
    if (step === this.shownStep) this.mark(step);
    else this.pace();
  }

  show() {
    const { run, state } = this.store;
    const step = run?.trace.steps[state.step];
    if (!run || !step || this.hidden) return;
    this.shownStep = step;
    const view = stepView(run.trace, step);
    this.items = items(view);
    this.rows = rows(view);
    this.marked = undefined;
    replace(this.stages, ...this.items);
    replace(this.removed, ...removals(view));
    this.bent.textContent = view.bent;
    replace(this.head, heading(view));
    replace(this.body, ...this.rows);
    this.mark(step);
  }

  /** @param {Step} step mark the selected candidate, and show its probability after each stage */
  mark(step) {
    const { run, state } = this.store;
    const candidate = step.candidates[state.candidate];
    const row = this.rows[state.candidate];
    if (!run || !candidate || !row) return;
    const canBranch = state.about !== null && candidate.id !== step.token_id;
    if (row !== this.marked) {
      this.marked?.removeAttribute("aria-current");
      row.setAttribute("aria-current", "true");
      if (this.marked) row.scrollIntoView({ block: "nearest" }); // of another step it stays where the reader looks
      this.marked = row;
      this.name.textContent = showProbabilities(this.items, run.trace, step, candidate);
    }
    if (!canBranch) this.branch.remove();
    else if (this.branch.parentNode !== row.lastChild) row.lastChild?.appendChild(this.branch);
  }

  /** @param {Event} event */
  handleClick(event) {
    const at = /** @type {Element} */ (event.target).closest("tr");
    const candidate = this.rows.indexOf(/** @type {HTMLElement} */ (at));
    if (candidate >= 0) this.store.set({ candidate });
  }

  fork() {
    const { run, state } = this.store;
    const candidate = run?.trace.steps[state.step]?.candidates[state.candidate];
    if (run && candidate) this.session.fork(run, state.step, candidate.id);
  }

  /** @param {Event} event force the tokens of the typed text, one after the other */
  async forceText(event) {
    event.preventDefault();
    const { run, state } = this.store;
    const [at, text] = [state.step, this.input.value];
    if (!run) return;
    try {
      const { ids, names } = await tokenize(text, true);
      const note = `${ids.length} tokens, forced one after the other: ${names.map(visible).join(" ")}`;
      this.message.textContent = ids.length > 1 ? note : "";
      const request = this.session.makeContinuation(run, [...run.trace.outputIds.slice(0, at), ...ids]);
      this.session.branch(run, at, request, `${text} at ${countFrom1(at)}`);
    } catch (error) {
      this.message.textContent = sentence(error);
    }
  }
}

customElements.define("step-waterfall", StepWaterfall);
