/**
 * The tab Completion: a field for the prompt, examples of it, and what becomes of the selected run. Its text is on the
 * right side.
 *
 * Knows the selected run, unless it belongs to a conversation.
 */

import { makeRequest, startRun } from "../state/requests.js";
import { button, copyButton, el, replace, setText } from "../parts/dom.js";
import { beginnings, exampleButtons } from "./examples.js";
import { generates } from "../state/panels.js";
import { lineage } from "../figures/branches.js";
import { ending } from "../state/conversation.js";
import { View } from "../parts/view.js";
import { endedByToken } from "../figures/endings.js";
/** @import { About, Run } from "../state/store.js" */
/** @import { Example } from "./examples.js" */

class CompletionBox extends View {
  field = el("textarea", { rows: 3, id: "prompt-field", placeholder: "Once upon a time",
    oninput: () => this.store.set({ prompt: this.field.value }),
    onkeydown: (/** @type {KeyboardEvent} */ event) => this.handleKey(event) });
  write = button("", () => this.writeOrStop(), { class: "primary" });
  more = button("Continue", () => this.continueText(), { title: "write on from its end, with the same seed" });
  copy = copyButton("Copy text", () => (this.run ? textOf(this.run) : ""), { title: "the prompt and the text" });
  status = el("p", { class: "faint", role: "status" });
  examples = el("div");
  /** @type {About | null} whose examples are shown */
  shownModel = null;

  build() {
    replace(this, el("label", { for: "prompt-field" }, "Text to continue"), this.field,
      el("div", { class: "row" }, this.write, this.more, this.copy.element), this.status, this.examples);
  }

  /** @returns {Run | null} the run that is shown here */
  get run() {
    const { run, state } = this.store;
    const root = run && lineage(state.runs, run)[0];
    return root?.request?.kind === "chat" ? null : run;
  }

  draw() {
    if (this.hidden) return;
    const { run } = this;
    const { about, loading, prompt } = this.store.state;
    setText(this.write, run?.live ? "Stop" : "Write");
    this.write.disabled = loading || about !== null && !generates(about);
    this.more.hidden = !run || run.live || !run.trace.steps.length || !about || this.session.foreign(run) !== null;
    this.copy.element.hidden = !run?.trace.steps.length;
    this.tell(run);
    if (this.field.value !== prompt) this.field.value = prompt;
    if (about !== this.shownModel) this.drawExamples(about);
    this.examples.hidden = prompt !== "" && !beginnings(about).some((example) => example.prompt === prompt);
  }

  /** @param {Run | null} run */
  tell(run) {
    const isOwnRun = run?.trace.known && !this.store.showsRecording;
    const status = isOwnRun ? [`run ${run.id}`, ending(run)].filter(Boolean).join(" · ") : "";
    if (this.status.textContent === status) return;
    setText(this.status, status);
    this.copy.forget();
  }

  /** @param {About | null} about */
  drawExamples(about) {
    this.shownModel = about;
    const examples = beginnings(about);
    replace(this.examples, about && !generates(about) ? el("p", {}, `${about.model} writes no text.`)
      : examples.length > 0 && exampleButtons(examples, (example) => this.take(example)));
  }

  /** @param {Example} example */
  take({ prompt, seed, settings = {} }) {
    if (this.run?.live) this.session.stop(this.run);
    this.store.set({ prompt });
    this.begin(prompt, this.store.state.seed.trim() || seed, settings);
  }

  /** @param {KeyboardEvent} event */
  handleKey(event) {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    if (!this.run?.live && !this.write.disabled) this.writeOrStop();
  }

  writeOrStop() {
    const { run } = this;
    if (run?.live) return this.session.stop(run);
    return this.begin(this.field.value, this.store.state.seed.trim() || null);
  }

  /** @param {string} prompt @param {string | null} seed @param {Record<string, any>} [settings] instead of the page's */
  begin(prompt, seed, settings = {}) {
    return startRun(this.store, this.session, makeRequest(this.store, { prompt, seed, settings }), { name: prompt.slice(0, 40) });
  }

  /** Continue the text with its own seed: the result is that of a larger max_tokens. */
  continueText() {
    const run = this.run && this.session.adopt(this.run);
    if (!run?.trace.known) return;
    const { head, outputIds } = run.trace;
    const writtenIds = endedByToken(run.trace) ? outputIds.slice(0, -1) : outputIds;
    const request = makeRequest(this.store, { prompt: [...head.prompt_token_ids, ...writtenIds], seed: head.seed });
    startRun(this.store, this.session, request, { name: `run ${run.id}, continued` });
  }
}

/** @param {Run} run @returns {string} its prompt and its text */
const textOf = ({ trace }) => (trace.head.prompt ?? trace.textOf(trace.head.prompt_token_ids)) + trace.text;

customElements.define("completion-box", CompletionBox);
