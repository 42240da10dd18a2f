/**
 * The button beside the one field that a phone shows at its lower edge: it opens all of the form, and its settings, and
 * closes them when a text begins. Wider windows show both, and no button.
 */

import { button, el, replace } from "../parts/dom.js";
import { View } from "../parts/view.js";

class WriteMore extends View {
  button = button(el("span", { "aria-hidden": "true" }, "⋯"), () => this.show(!this.isOpen), {
    "aria-label": "The whole form, and its settings", "aria-expanded": "false" });
  runs = 0;

  build() {
    replace(this, this.button);
  }

  get isOpen() {
    return this.parentElement?.classList.contains("open") ?? false;
  }

  draw() {
    const { length } = this.store.state.runs;
    if (length > this.runs) this.show(false);
    this.runs = length;
  }

  /** @param {boolean} open */
  show(open) {
    this.parentElement?.classList.toggle("open", open);
    this.button.setAttribute("aria-expanded", String(open));
  }
}

customElements.define("write-more", WriteMore);
