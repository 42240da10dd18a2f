/**
 * Tokens that flow as a text, in new lines where it has them. They are in chunks, so that the browser lays out only the
 * visible ones and the last one, however long the text is.
 */

import { el } from "./dom.js";
import { breaksBetween } from "../figures/numbers.js";
/** @import { Trace } from "../state/trace.js" */

/** A chunk ends at the first line break after `least` tokens, or after `most` tokens. */
const CHUNK = { least: 100, most: 200 };

export class Flow {
  chunk = el("div", { class: "chunk" });
  length = 0; // of the chunk
  end = 0; // the step after the last one

  /** @param {HTMLElement} element that holds the text @param {HTMLElement} [before] that its first line begins with */
  constructor(element, before) {
    this.element = element;
    if (before) this.chunk.append(before);
    element.append(this.chunk);
  }

  /** @param {Trace} trace @param {HTMLElement[]} chips of it @param {number} from @param {number} to append these steps */
  take(trace, chips, from, to) {
    for (let i = from; i < to; i++) {
      const [before, step] = [trace.steps[i - 1], trace.steps[i]];
      if (!step || !chips[i]) continue;
      const breaks = before !== undefined && this.chunk.hasChildNodes()
        && breaksBetween(trace.nameOf(before.token_id), trace.nameOf(step.token_id));
      if (this.length >= (breaks ? CHUNK.least : CHUNK.most)) this.nextChunk();
      else if (breaks) this.chunk.append(el("br"));
      this.chunk.append(/** @type {HTMLElement} */ (chips[i]));
      this.length += 1;
    }
    this.end = to;
  }

  nextChunk() {
    this.chunk = el("div", { class: "chunk" });
    this.length = 0;
    this.element.append(this.chunk);
  }
}
