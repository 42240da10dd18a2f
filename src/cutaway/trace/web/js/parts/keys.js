/**
 * The keys of the page, and the help: how to read the page, and the keys. In a field, letters are text.
 */

import { button, el, replace, setText } from "./dom.js";
import { candidateSentence, stepSentence } from "../figures/rivals.js";
import { seriesOf } from "../figures/series.js";
import { isUncertain } from "../figures/step-view.js";
import { View } from "./view.js";
/** @import { Step, Trace } from "../state/trace.js" */

/** @type {[string, string][]} in the order in which a token comes about */
const WORDS = [
  ["token", "a piece of text, often a word with the space before it; the model writes one at a time"],
  ["logit", "the model's number for a token of its vocabulary; softmax makes probabilities of them"],
  ["surprise", "−log2 of a token's probability: 0 bits was certain, 1 bit one in two, 8 bits one in 256"],
  ["entropy", "the surprise that the model expected: how undecided it was"],
  ["chain", "the sampling stages in their order, such as temperature and top-p, which change or remove candidates"],
  ["luck", "the random number of a token, from the seed; the greatest sum of log-probability and luck is drawn"],
  ["branch", "another token at a step, and the same luck after it"],
];

/** @type {[string, string][]} */
const KEYS = [
  ["← →", "the previous step, the next step"],
  ["Shift ← →", "ten steps"],
  ["Home End", "the first step, the last step"],
  ["↑ ↓", "the previous candidate, the next candidate"],
  ["Enter", "branch: continue with the selected candidate and the same luck"],
  ["e", "the next step with no token above 50%"],
  ["r", "the next step whose token is not the likeliest"],
  ["x", "the next step at which the end token could have been drawn"],
  ["E R X", "the same, backwards"],
  ["p P", "the next pass of a canvas, the previous one"],
  ["t", "the next run"],
  ["l", "large type, for a projector"],
  ["?", "this help"],
  ["Esc", "stop generating; close this help"],
];

/** @type {Record<string, (trace: Trace, step: Step) => boolean>} */
const SEARCHES = {
  e: (_, step) => isUncertain(step),
  r: (_, step) => step.rank !== 1,
  x: (trace, { index }) => (seriesOf(trace).moments[index]?.final ?? 0) > 0,
};

class KeyHelp extends View {
  dialog = el("dialog", { "aria-label": "Help" });
  announcement = el("p", { class: "visually-hidden", role: "status" }); // what a key has selected
  reference = el("p", {}, "For programs, this server's endpoints: ", el("a", { href: "openapi.json" }, "openapi.json"), ".");

  build() {
    replace(this.dialog,
      el("div", { class: "help" },
        el("section", {}, el("h2", { tabindex: -1, autofocus: "" }, "How to read this page"), // not the link, which may be far down
          el("p", {}, "Above is the text, token by token. Click a token: below is the step that drew it."),
          table(WORDS.map(([word, meaning]) => [el("b", {}, word), meaning])), this.reference),
        el("section", {}, el("h2", {}, "Keys"), table(KEYS.map(([keys, meaning]) => [el("kbd", {}, keys), meaning])))),
      button("Close", () => this.dialog.close(), { class: "primary" }));
    replace(this, this.dialog, this.announcement);
    document.addEventListener("keydown", (event) => this.handleKey(event));
  }

  draw() {
    this.reference.hidden = !this.store.state.about; // an exported file has no server
  }

  /** @param {KeyboardEvent} event */
  handleKey(event) {
    const on = /** @type {Element} */ (event.target);
    const writes = on.closest?.("input, textarea, select, dialog");
    const presses = event.key === "Enter" && on.closest?.("button, a, summary, [role=button]");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") this.stop();
    else if (!writes && !presses && this.act(event.key, event.shiftKey)) {
      event.preventDefault();
      this.tell(event.key);
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
    else if (key === "l") this.store.set({ large: !this.store.state.large });
    else if (key === "t") this.nextRun();
    else if (key === "p" || key === "P") this.pass(key === "p" ? 1 : -1);
    else if (key.toLowerCase() in SEARCHES) this.search(key);
    else return false;
    return true;
  }

  /** @param {string} key tell the step that it selected, or the candidate, in a sentence */
  tell(key) {
    const { run, state } = this.store;
    const step = run?.trace.steps[state.step];
    const candidate = key === "ArrowUp" || key === "ArrowDown" ? step?.candidates[state.candidate] : undefined;
    if (run && step) setText(this.announcement, candidate ? candidateSentence(run.trace, step, candidate) : stepSentence(run.trace, step));
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
    const candidate = run?.trace.steps[state.step]?.candidates[state.candidate];
    if (run && candidate && this.store.state.about) this.session.fork(run, state.step, candidate.id);
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
    const matches = SEARCHES[key.toLowerCase()];
    if (!run || !matches) return;
    const { steps } = run.trace;
    const there = key === key.toLowerCase()
      ? steps.find((step) => step.index > state.step && matches(run.trace, step))
      : steps.findLast((step) => step.index < state.step && matches(run.trace, step));
    if (there) this.store.goTo(there.index);
  }
}

/** @param {[Node, string][]} rows @returns {HTMLElement} */
const table = (rows) => el("table", {}, el("tbody", {}, ...rows.map(([name, meaning]) =>
  el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, meaning)))));

/** Open the help as its key does. */
export const pressHelp = () => document.dispatchEvent(new KeyboardEvent("keydown", { key: "?" }));

/** @returns {HTMLElement | null} */
const strip = () => document.querySelector("token-strip [tabindex]");

customElements.define("key-help", KeyHelp);
