/**
 * The arrival: the recording writes itself, about six tokens a second, up to its most uncertain step. Each token's
 * likeliest rivals fall with it on the caret, and fade.
 *
 * Knows the chips of the strip. What is shown of the run follows from the store's `arriving` and `step`; the run is whole.
 */

import { falling } from "../drawings/arrival.js";
import { mostUncertain } from "../figures/step-view.js";
import { rivals } from "../figures/rivals.js";
import { el, renderMark, svg, typeScale } from "./dom.js";
/** @import { Store } from "../state/store.js" */
/** @import { Trace, Step } from "../state/trace.js" */

const PACE = 1000 / 6; // milliseconds from token to token
const LONGEST = 8000;
const FADES = 800; // milliseconds of a step's words, as in css/strip.css
const LAST_FADES = 3000; // of the last step's

/** @returns {boolean} whether the page writes its recording on arrival: where motion is welcome, or the address asks for it; tests do without */
export const isWelcome = () => new URLSearchParams(location.search).has("arrival")
  || !(navigator.webdriver || matchMedia("(prefers-reduced-motion: reduce)").matches);

export class Arrival {
  element = el("div", { class: "falling", "aria-hidden": "true" });
  fallenStep = -1; // the last step that has fallen
  isRunning = false;

  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    document.addEventListener("click", () => store.endArrival(), { capture: true });
    document.addEventListener("keydown", ({ key }) => STILL.includes(key) || store.endArrival(), { capture: true });
  }

  /** @param {Trace} trace @param {HTMLElement[]} chips */
  draw(trace, chips) {
    const { arriving, step } = this.store.state;
    if (!arriving && !this.isRunning) return;
    chips.forEach((chip, i) => chip.classList.toggle("unwritten", arriving && i > step));
    if (!this.isRunning) this.begin(trace);
    const at = trace.steps[step];
    if (at && step !== this.fallenStep && (arriving || this.isLast(trace, step))) this.fall(trace, at, chips[step]);
    this.isRunning = arriving;
  }

  /** @param {Trace} trace */
  begin(trace) {
    const last = mostUncertain(trace);
    const pace = Math.min(PACE, LONGEST / Math.max(last, 1));
    this.fallenStep = -1;
    this.isRunning = true;
    const next = () => {
      const { arriving, step } = this.store.state;
      if (!arriving) return;
      if (step + 1 >= last || !this.store.showsRecording) return this.store.endArrival();
      this.store.goTo(step + 1);
      setTimeout(next, pace);
    };
    setTimeout(next, pace);
  }

  /** @param {Trace} trace @param {number} step @returns {boolean} whether the arrival has come to its end by itself */
  isLast(trace, step) {
    return step === mostUncertain(trace) && step === this.fallenStep + 1;
  }

  /** @param {Trace} trace @param {Step} step @param {HTMLElement | undefined} chip where its words fall */
  fall(trace, step, chip) {
    this.fallenStep = step.index;
    const line = chip?.getClientRects()[0];
    if (!line) return;
    const there = this.element.getBoundingClientRect();
    const suffix = this.store.state.arriving ? "" : " held";
    const words = svg("svg", { class: `words${suffix}`, style: { left: `${line.left - there.left}px`, top: `${line.bottom - there.top - 5}px` } },
      renderMark(falling(rivals(trace, step), typeScale())));
    this.element.append(words);
    setTimeout(() => words.remove(), suffix ? LAST_FADES : FADES);
  }
}

/** Keys that alone do nothing. */
const STILL = ["Tab", "Shift", "Control", "Alt", "Meta"];
