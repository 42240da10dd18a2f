/**
 * The guide of an exported file (trace/page.py): a question, sentences that open places in the runs, and the answer.
 *
 * Its text is in the document (guide.html). Knows how a place is an address, so that each sentence is a link. Which of them was
 * opened last is not in the address; "#point=2" opens the second.
 */

import { scrollToPanels } from "./dom.js";
import { completePlace } from "../state/store.js";
import { View } from "./view.js";
/** @import { Place } from "../state/store.js" */

class RunGuide extends View {
  /** @type {Place[]} */
  places = JSON.parse(document.querySelector("#guide")?.textContent ?? "[]");
  links = /** @type {HTMLAnchorElement[]} */ ([...this.querySelectorAll("ol a")]);
  back = /** @type {HTMLButtonElement} */ (this.querySelector("button"));
  on = /** @type {HTMLButtonElement} */ (this.querySelector("button.primary"));
  progress = /** @type {HTMLElement} */ (this.querySelector("[role=status]"));
  at = -1;

  build() {
    for (const [i, link] of this.links.entries()) {
      link.href = addressOf(this.places[i] ?? {});
      link.addEventListener("click", (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return; // another window
        event.preventDefault();
        this.open(i);
      });
    }
    this.back.addEventListener("click", () => this.open(this.at - 1));
    this.on.addEventListener("click", () => this.open(this.at + 1));
    this.begin();
  }

  /** Show what the address names, or the first sentence, before the parts that follow in the document are drawn. */
  begin() {
    const point = new URLSearchParams(location.hash.slice(1)).get("point");
    if (location.hash && !point) return this.mark(this.links.findIndex((link) => link.getAttribute("href") === location.hash));
    this.open(point ? Number(point) - 1 : 0, false);
    if (point) scrollToPanels();
  }

  /** @param {number} i which point @param {boolean} [scroll] whether to bring the panels into sight, as for a reader's click */
  open(i, scroll = true) {
    const place = this.places[i];
    if (!place) return;
    this.store.show(place);
    this.mark(i);
    if (scroll) scrollToPanels();
  }

  /** @param {number} i */
  mark(i) {
    this.at = i;
    for (const [k, link] of this.links.entries()) {
      if (k === i) link.setAttribute("aria-current", "step");
      else link.removeAttribute("aria-current");
    }
    const last = i === this.links.length - 1;
    this.back.disabled = i <= 0;
    this.on.disabled = last;
    this.classList.toggle("last", last);
    this.progress.textContent = i < 0 ? `${this.links.length} steps` : `${i + 1} of ${this.links.length}`;
  }
}

/** @param {Place} place @returns {string} */
function addressOf(place) {
  const address = new URLSearchParams();
  for (const [name, value] of Object.entries(completePlace(place))) {
    address.set(name, typeof value === "string" ? value : JSON.stringify(value));
  }
  return `#${address}`;
}

customElements.define("run-guide", RunGuide);
