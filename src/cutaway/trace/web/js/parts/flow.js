/**
 * Tokens that flow as a text, in new lines where it has them. They are in chunks, so that the browser lays out only the
 * visible ones and the last one, however long the text is.
 */

import { el } from "./dom.js";
import { breaksBetween } from "../figures/numbers.js";
/** @import { Trace } from "../state/trace.js" */

/** A chunk ends at the first line break after `least` tokens, or after `most` tokens. */
const CHUNK = { least: 100, most: 200 };

const REST = 150; // milliseconds after a jump

export class Flow {
  chunk = el("div", { class: "chunk" });
  length = 0; // of the chunk
  end = 0; // the step after the last one
  /** @type {Element[]} the chunks around the token that the reader went to */
  near = [];
  timer = 0;

  /** @param {HTMLElement} element that holds the text @param {HTMLElement} [before] that its first line begins with */
  constructor(element, before) {
    this.element = element;
    if (before) this.chunk.append(before);
    element.append(this.chunk);
  }

  /** @param {Trace} trace @param {HTMLElement[]} chips of it @param {number} from @param {number} to append these steps */
  take(trace, chips, from, to) {
    for (let i = from; i < to; i++) {
      const [before, step, chip] = [trace.steps[i - 1], trace.steps[i], chips[i]];
      if (!step || !chip) continue;
      const breaks = before !== undefined && this.chunk.hasChildNodes()
        && breaksBetween(trace.nameOf(before.token_id), trace.nameOf(step.token_id));
      if (this.length >= (breaks ? CHUNK.least : CHUNK.most)) this.nextChunk();
      else if (breaks) this.chunk.append(el("br"));
      this.chunk.append(chip);
      if (!breaks && chip.querySelector(".ghost")) chips[i - 1]?.classList.add("crowded");
      this.length += 1;
    }
    this.end = to;
  }

  /**
   * Let only the chunks around a token be laid out, where that was not done yet: a browser lays out those within some screens,
   * which costs more than a frame, and may do so once the reader rests.
   * @param {HTMLElement} chip of this text, which the reader goes to
   */
  approach(chip) {
    if (chip.checkVisibility?.({ contentVisibilityAuto: true }) !== false) return;
    const home = /** @type {HTMLElement} */ (chip.parentElement);
    for (const chunk of this.near) chunk.classList.remove("near");
    this.near = [home.previousElementSibling, home, home.nextElementSibling].filter((chunk) => chunk !== null);
    for (const chunk of this.near) chunk.classList.add("near");
    this.element.classList.add("jumping");
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.element.classList.remove("jumping"), REST);
  }

  nextChunk() {
    this.chunk = el("div", { class: "chunk" });
    this.length = 0;
    this.element.append(this.chunk);
  }
}
