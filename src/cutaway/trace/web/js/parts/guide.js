/**
 * The guide of an exported file (trace/page.py): a question, sentences that open places in the runs, and the answer.
 *
 * Knows how a place is an address, so that each sentence is a link. Which of them was opened last is not in the address; "#point=2"
 * opens the second.
 */

import { button, el, replace, scrollToPanels } from "./dom.js";
import { completePlace } from "../state/store.js";
import { View } from "./view.js";
/** @import { Place } from "../state/store.js" */

/**
 * @typedef {{text: string, shows: Place}} Point
 * @typedef {{title: string, question: string, points: Point[], answer: string, links: [string, string][]}} Guide
 */


class RunGuide extends View {
  /** @type {HTMLElement[]} */
  links = [];
  at = -1;
  back = button("← Back", () => this.open(this.at - 1));
  on = button("Next →", () => this.open(this.at + 1), { class: "primary" });
  progress = el("span", { class: "faint", role: "status" });
  answer = el("p", { class: "answer" });

  build() {
    /** @type {Guide} */
    const { title, question, points, answer, links } = JSON.parse(document.querySelector("#guide")?.textContent ?? "null");
    this.points = points;
    this.links = points.map(({ text, shows }, i) => el("a", { href: addressOf(shows), onclick: (/** @type {MouseEvent} */ event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return; // another window
      event.preventDefault();
      this.open(i);
    } }, text));
    this.answer.append(el("strong", {}, "The answer. "), answer);
    replace(this, el("h2", {}, title), el("p", { class: "question" }, question),
      el("div", { class: "steps" }, el("ol", {}, ...this.links.map((link) => el("li", {}, link))), this.answer,
        el("div", { class: "row" }, this.back, this.on, this.progress)),
      el("nav", { class: "row", "aria-label": "Lessons" }, ...links.map(([words, href]) => el("a", { href }, words))));
    const here = this.links.findIndex((link) => link.getAttribute("href") === location.hash);
    const named = new URLSearchParams(location.hash.slice(1)).get("point");
    if (named) queueMicrotask(() => this.open(Number(named) - 1));
    else if (location.hash) this.mark(here);
    else queueMicrotask(() => this.open(0, false)); // once all parts are there
  }

  /** @param {number} i which point @param {boolean} [scroll] whether to bring the panels into sight, as for a reader's click */
  open(i, scroll = true) {
    const point = this.points?.[i];
    if (!point) return;
    this.store.show(point.shows);
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
