/**
 * What leaves the page of the selected step: its address, a picture of it, and, in print, the model, seed and fingerprint
 * that give the same text again. The address holds requests; what came from a file it cannot hold, and says so.
 */

import { cardOf } from "../figures/card.js";
import { button, copyButton, el, replace, setText } from "./dom.js";
import { countFrom1 } from "../figures/numbers.js";
import { pictureOf } from "./picture.js";
import { save } from "./save.js";
import { View } from "./view.js";

class CopyLink extends View {
  link = copyButton("Copy link", () => `${location.href.split("#", 1)[0]}#${this.store.address}`);
  picture = button("Picture", () => this.paint(), { title: "save this step as a picture: the text, the river, and why the token won" });
  imprint = el("p", { class: "imprint" });
  missing = el("span", { class: "faint", role: "status" });
  shownKey = "";

  build() {
    this.link.element.addEventListener("click", () => setText(this.missing, this.left()));
    addEventListener("beforeprint", () => this.print());
    replace(this, this.link.element, " ", this.picture, " ", this.missing, this.imprint);
  }

  draw() {
    const { run, state } = this.store;
    this.hidden = !run?.trace.steps[state.step];
    const now = `${run?.id} ${state.step}`;
    if (now === this.shownKey) return;
    this.shownKey = now;
    this.link.element.title = `the address of step ${countFrom1(state.step)}: opened, it writes the text again from its seed`;
    this.link.forget();
    setText(this.missing, "");
  }

  get step() {
    const { run, state } = this.store;
    const step = run?.trace.steps[state.step];
    return run && step ? { run, step } : null;
  }

  async paint() {
    const here = this.step;
    if (!here) return;
    try {
      save(`step-${countFrom1(here.step.index)}.png`, await pictureOf(here.run.trace, here.step), "image/png");
    } catch {
      setText(this.missing, "This browser cannot make the picture.");
    }
  }

  print() {
    const here = this.step;
    if (here) setText(this.imprint, cardOf(here.run.trace, here.step).imprint);
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
