/**
 * The keys of the page and their help. In a field, letters are text.
 */

import { button, el, replace } from "./dom.js";
import { endMoment } from "../figures/endings.js";
import { isUncertain } from "../figures/step-view.js";
import { View } from "./view.js";
/** @import { Step, Trace } from "../state/trace.js" */

/** @type {[string, string][]} */
const HELP = [
  ["← →", "the previous step, the next step"],
  ["Shift ← →", "ten steps"],
  ["Home End", "the first step, the last step"],
  ["↑ ↓", "the previous candidate, the next candidate"],
  ["Enter", "branch: continue with the selected candidate and the same luck"],
  ["e", "the next step at which no token has a probability of 0.5"],
  ["r", "the next step whose token is not the likeliest"],
  ["x", "the next step at which the end token survived the chain"],
  ["E R X", "the same, backwards"],
  ["p P", "the next pass of a canvas, the previous one"],
  ["t", "the next run"],
  ["?", "this help"],
  ["Esc", "stop generating; close this help"],
];

/** @type {Record<string, (trace: Trace, step: Step) => boolean>} */
const SEARCHES = {
  e: (_, step) => isUncertain(step),
  r: (_, step) => step.rank !== 1,
  x: (trace, step) => (endMoment(trace, step)?.final ?? 0) > 0,
};

class KeyHelp extends View {
  dialog = el("dialog", { "aria-label": "Keys" });

  build() {
    const rows = HELP.map(([keys, what]) =>
      el("tr", {}, el("th", { scope: "row" }, el("kbd", {}, keys)), el("td", {}, what)));
    const close = button("Close", () => this.dialog.close());
    replace(this.dialog, el("h2", {}, "Keys"), el("table", {}, el("tbody", {}, ...rows)), close);
    replace(this, this.dialog);
    document.addEventListener("keydown", (event) => this.pressed(event));
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    const on = /** @type {Element} */ (event.target);
    const writes = on.closest?.("input, textarea, select, dialog");
    const presses = event.key === "Enter" && on.closest?.("button, a, summary, [role=button]");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") this.stop();
    else if (!writes && !presses && this.act(event.key, event.shiftKey)) {
      event.preventDefault();
      if (on.closest?.("button, a")) strip()?.focus({ preventScroll: true }); // so that Enter does not press the button
    }
  }

  /** @param {string} key @param {boolean} shift @returns {boolean} whether the key has a meaning */
  act(key, shift) {
    const { step } = this.store.state;
    const last = (this.store.run?.trace.places ?? 1) - 1;
    const far = shift ? 10 : 1;
    if (key === "?") this.dialog.showModal();
    else if (key === "ArrowLeft") this.store.goTo(step - far);
    else if (key === "ArrowRight") this.store.goTo(step + far);
    else if (key === "Home") this.store.goTo(0);
    else if (key === "End") this.store.goTo(last);
    else if (key === "ArrowUp") this.candidate(-1);
    else if (key === "ArrowDown") this.candidate(1);
    else if (key === "Enter") this.branch();
    else if (key === "t") this.nextRun();
    else if (key === "p" || key === "P") this.pass(key === "p" ? 1 : -1);
    else if (key.toLowerCase() in SEARCHES) this.search(key);
    else return false;
    return true;
  }

  stop() {
    if (this.store.run?.live) this.session.stop(this.store.run);
  }

  /** @param {number} by */
  candidate(by) {
    const { run, state } = this.store;
    const count = run?.trace.steps[state.step]?.candidates.length ?? 0;
    this.store.set({ candidate: Math.max(0, Math.min(state.candidate + by, count - 1)) });
  }

  branch() {
    const { run, state } = this.store;
    const chosen = run?.trace.steps[state.step]?.candidates[state.candidate];
    if (run && chosen && this.store.state.about) this.session.fork(run, state.step, chosen.id);
  }

  /** @param {number} by */
  pass(by) {
    const last = (this.store.run?.trace.passes.length ?? 0) - 1;
    const there = (this.store.state.pass ?? last) + by;
    if (last >= 0) this.store.set({ pass: Math.max(0, Math.min(there, last)) });
  }

  nextRun() {
    const { runs, run } = this.store.state;
    const at = runs.findIndex((other) => other.id === run);
    const next = runs[(at + 1) % runs.length];
    if (next) this.store.select(next.id);
  }

  /** @param {string} key a letter; a capital searches backwards */
  search(key) {
    const { run, state } = this.store;
    const found = SEARCHES[key.toLowerCase()];
    if (!run || !found) return;
    const steps = run.trace.steps.filter((step) => found(run.trace, step));
    const back = key !== key.toLowerCase();
    const there = back
      ? steps.filter((step) => step.index < state.step).at(-1)
      : steps.find((step) => step.index > state.step);
    if (there) this.store.goTo(there.index);
  }
}

/** @returns {HTMLElement | null} */
const strip = () => document.querySelector("token-strip [tabindex]");

customElements.define("key-help", KeyHelp);
