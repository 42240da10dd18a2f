/**
 * A button that copies the address of the selected step. The address holds requests, from which the same text comes
 * again: what came from a file it cannot hold, and says so.
 */

import { copyButton, el, replace, setText } from "./dom.js";
import { View } from "./view.js";

class CopyLink extends View {
  link = copyButton("Copy link", () => `${location.href.split("#", 1)[0]}#${this.store.address}`);
  missing = el("span", { class: "faint", role: "status" });
  shownKey = "";

  build() {
    this.link.element.addEventListener("click", () => setText(this.missing, this.left()));
    replace(this, this.link.element, " ", this.missing);
  }

  draw() {
    const { run, state } = this.store;
    this.hidden = !run?.trace.steps[state.step];
    const now = `${run?.id} ${state.step}`;
    if (now === this.shownKey) return;
    this.shownKey = now;
    this.link.element.title = `the address of step ${state.step}: opened, it writes the text again from its seed`;
    this.link.forget();
    setText(this.missing, "");
  }

  /** @returns {string} what the link does not carry; empty: nothing */
  left() {
    const { run } = this.store;
    if (!run || run.request || this.store.showsRecording) return "";
    return this.store.state.about
      ? "A link cannot carry an opened file: send the file, too (Download)."
      : "The link names this file: send the file, too.";
  }
}

customElements.define("copy-link", CopyLink);
