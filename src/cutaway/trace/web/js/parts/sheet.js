/**
 * A phone's sheet: what a tap on a token asks for. It has the token, its percentage, why it won, and the five likeliest
 * candidates, one of which can be put in its place. A swipe goes to the next token; the text stays in sight above.
 */

import { shareBar } from "../drawings/share.js";
import { leading } from "../figures/leading.js";
import { countFrom1, shortPercent, thousands, visible } from "../figures/numbers.js";
import { riverOf, riverSentence } from "../figures/river.js";
import { stepView } from "../figures/step-view.js";
import { button, el, isPhone, renderMark, replace, scrollToText, setText, token } from "./dom.js";
import { View } from "./view.js";
/** @import { StepView } from "../figures/step-view.js" */
/** @import { Run } from "../state/store.js" */
/** @import { Step } from "../state/trace.js" */

const ROWS = 5;
const SWIPE = 40; // pixels to a side

class TokenSheet extends View {
  place = el("span", { class: "faint" });
  token = el("strong", { class: "token" });
  figures = el("span", { class: "mono" });
  says = el("p", { class: "says", role: "status" });
  list = el("ol", {});
  branch = button("Branch", () => this.fork(), { class: "primary" });
  back = button("←", () => this.move(-1), { "aria-label": "the previous token" });
  on = button("→", () => this.move(1), { "aria-label": "the next token" });
  touchedAt = 0;
  shownKey = "";

  build() {
    this.hidden = true;
    this.setAttribute("role", "region");
    this.setAttribute("aria-label", "The token");
    this.addEventListener("touchstart", ({ touches }) => (this.touchedAt = touches[0]?.clientX ?? 0), { passive: true });
    this.addEventListener("touchend", ({ changedTouches }) => this.swipe((changedTouches[0]?.clientX ?? 0) - this.touchedAt));
    this.list.addEventListener("click", (event) => this.choose(event));
    replace(this,
      el("div", { class: "row" }, this.back, this.place, this.on, this.branch,
        button("×", () => this.store.set({ sheet: false }), { class: "close", "aria-label": "close" })),
      el("p", { class: "row" }, this.token, this.figures), this.list, this.says,
      el("p", { class: "faint" }, "Swipe for the next token."));
  }

  draw() {
    const { run, state } = this.store;
    const step = run?.trace.steps[state.step];
    const wasHidden = this.hidden;
    this.hidden = !state.sheet || !step || !isPhone();
    document.body.classList.toggle("sheeted", !this.hidden);
    if (wasHidden && !this.hidden) scrollToText();
    if (this.hidden || !run || !step) return;
    const candidate = step.candidates[state.candidate];
    this.branch.disabled = !state.about || !candidate || candidate.id === step.token_id || step.pass_index !== undefined;
    const key = `${run.id} ${state.step} ${state.candidate} ${run.trace.steps.length}`;
    if (key !== this.shownKey) this.show(run, step, stepView(run.trace, step));
    this.shownKey = key;
  }

  /** @param {Run} run @param {Step} step @param {StepView} view */
  show({ trace }, step, view) {
    const count = trace.steps.length;
    setText(this.place, `step ${countFrom1(step.index)} of ${count}`);
    this.back.disabled = step.index === 0;
    this.on.disabled = step.index === count - 1;
    setText(this.token, visible(view.token));
    setText(this.figures, `${shortPercent(view.probability)} · rank ${thousands(view.rank)} · ${view.bits.toFixed(1)} bits`);
    setText(this.says, riverSentence(riverOf(trace, step)));
    replace(this.list, ...leading(view, ROWS).map((c) => el("li", {}, el("button", { type: "button", "data-at": c.at,
      "aria-pressed": String(c.at === this.store.state.candidate) },
    token(c.token), renderMark(shareBar(c.final ?? 0, c.chosen)), el("span", { class: "mono" }, shortPercent(c.final))))));
  }

  /** @param {number} by */
  move(by) {
    const { run, state } = this.store;
    if (run?.trace.steps[state.step + by]) this.store.goTo(state.step + by);
  }

  /** @param {number} by pixels to the right: the token before */
  swipe(by) {
    if (Math.abs(by) > SWIPE) this.move(by > 0 ? -1 : 1);
  }

  /** @param {Event} event */
  choose(event) {
    const at = /** @type {Element} */ (event.target).closest("button")?.dataset["at"];
    if (at !== undefined) this.store.set({ candidate: Number(at) });
  }

  fork() {
    const { run, state } = this.store;
    const candidate = run?.trace.steps[state.step]?.candidates[state.candidate];
    if (run && candidate) this.session.fork(run, state.step, candidate.id);
  }
}

customElements.define("token-sheet", TokenSheet);
