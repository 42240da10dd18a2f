/**
 * The lessons, one at a time: practice by hand, a mistake that snowballs, a text that won't stop.
 *
 * Knows their names and order, and nothing in them.
 */

import "./practice.js";
import "./snowball.js";
import "./stop.js";
import { el, replace } from "../parts/dom.js";
import { View } from "../parts/view.js";

/** @type {[string, string, string][]} lesson, what its button says, its element */
const LESSONS = [
  ["practice", "Practice by hand", "practice-lesson"],
  ["snowball", "How a mistake grows", "snowball-lesson"],
  ["stop", "Why won’t it stop?", "stop-lesson"],
];

class LessonPanel extends View {
  /** @type {Map<string, {button: HTMLElement, lesson: View}>} */
  parts = new Map();

  build() {
    for (const [name, label, element] of LESSONS) {
      const button = el("button", { type: "button", onclick: () => this.store.set({ lesson: name }) }, label);
      const lesson = /** @type {View} */ (document.createElement(element));
      lesson.hidden = true;
      this.parts.set(name, { button, lesson });
    }
    const parts = [...this.parts.values()];
    const choice = el("div", { class: "choice row", role: "group", "aria-label": "Lessons" },
      ...parts.map(({ button }) => button));
    replace(this, choice, ...parts.map(({ lesson }) => lesson));
    for (const { lesson } of parts) lesson.attach(this.store, this.session);
  }

  draw() {
    const { lesson: asked } = this.store.state;
    const open = this.parts.has(asked) ? asked : "practice";
    for (const [name, { button, lesson }] of this.parts) {
      button.setAttribute("aria-pressed", String(name === open));
      lesson.hidden = name !== open;
    }
  }
}

customElements.define("lesson-panel", LessonPanel);
