/**
 * The tab Completion: a field for the prompt, and below it the text that the model generates.
 *
 * Shows the selected run, unless it belongs to a conversation.
 */

import { begun, requested } from "../state/requests.js";
import { button, el, replace } from "../parts/dom.js";
import { Following } from "./following.js";
import { lineage } from "../figures/branches.js";
import { ending } from "../state/conversation.js";
import { View } from "../parts/view.js";
import { endedByToken } from "../figures/endings.js";
/** @import { Run } from "../state/store.js" */
/** @import { Trace } from "../state/trace.js" */

class CompletionBox extends View {
  field = el("textarea", { rows: 4, id: "prompt-field", placeholder: "Once upon a time",
    oninput: () => this.store.set({ prompt: this.field.value }),
    onkeydown: (/** @type {KeyboardEvent} */ event) => this.pressed(event) });
  write = button("", () => this.writeOrStop(), { class: "primary" });
  more = button("Continue", () => this.continueText());
  status = el("span", { class: "faint" });
  prompt = document.createTextNode("");
  words = document.createTextNode("");
  result = el("div", { class: "result", tabindex: 0, role: "region", "aria-label": "The text" },
    el("span", { class: "begun" }, this.prompt), this.words);
  following = new Following(this.result);
  /** @type {Trace | null} whose prompt is shown */
  shown = null;

  build() {
    replace(this, el("label", { for: "prompt-field" }, "Text to continue"), this.field,
      el("div", { class: "row" }, this.write, this.more, this.status), this.result);
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
    this.write.textContent = run?.live ? "Stop" : "Write";
    this.more.disabled = !run || run.live || !run.trace.steps.length || !this.store.state.about;
    this.status.textContent = run?.trace.known ? [`run ${run.id}`, ending(run)].filter(Boolean).join(" · ") : "";
    if (this.field.value !== this.store.state.prompt) this.field.value = this.store.state.prompt;
    this.drawText(run?.trace ?? null);
  }

  /** @param {Trace | null} trace */
  drawText(trace) {
    this.result.hidden = !trace?.steps.length; // the prompt's tokens are known from the first step on
    if (!trace?.steps.length) return;
    if (trace !== this.shown) this.prompt.data = trace.head.prompt ?? trace.textOf(trace.head.prompt_token_ids);
    const text = trace.text;
    if (trace === this.shown && text === this.words.data) return;
    this.words.data = text;
    if (trace === this.shown) this.following.follow();
    else this.following.toEnd();
    this.shown = trace;
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    if (!this.run?.live) this.writeOrStop();
  }

  writeOrStop() {
    const { run } = this;
    if (run?.live) return this.session.stop(run);
    const prompt = this.field.value;
    return begun(this.store, this.session, requested(this.store, { prompt }), { name: prompt.slice(0, 40) });
  }

  /** Continue the text with its own seed: the result is that of a larger max_tokens. */
  continueText() {
    const { run } = this;
    if (!run?.trace.known) return;
    const { head, outputIds } = run.trace;
    const written = endedByToken(run.trace) ? outputIds.slice(0, -1) : outputIds;
    const request = requested(this.store, { prompt: [...head.prompt_token_ids, ...written], seed: head.seed });
    begun(this.store, this.session, request, { name: `run ${run.id}, continued` });
  }
}

customElements.define("completion-box", CompletionBox);
