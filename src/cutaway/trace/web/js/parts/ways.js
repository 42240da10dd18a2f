/**
 * How the selected run's text was computed, and buttons that write it again in another way. A part of the panel Timelines,
 * which has the time of each step of both.
 *
 * Knows the ways of figures/ways.js; the session writes the text again.
 */

import { button, el, replace, setText } from "./dom.js";
import { WAYS, twinOf, wayOf, wayPhrase, waySentence } from "../figures/ways.js";
import { startRun } from "../state/requests.js";
import { View } from "./view.js";
/** @import { Way } from "../figures/ways.js" */
/** @import { Run } from "../state/store.js" */

class TextWays extends View {
  sentence = el("p", {});
  buttons = WAYS.map((way) => button(`Write it again ${wayPhrase(way)}`, () => this.write(way)));
  row = el("div", { class: "row" }, ...this.buttons);

  build() {
    replace(this, this.sentence, this.row);
  }

  draw() {
    const { run, state } = this.store;
    this.hidden = !run?.trace.steps.length || run.trace.head.decoder !== undefined;
    if (!run || this.hidden) return;
    setText(this.sentence, waySentence(run, twinOf(state.runs, run)));
    this.row.hidden = !state.about || this.session.foreign(run) !== null;
    const way = wayPhrase(wayOf(run.trace));
    this.buttons.forEach((again, i) => {
      const other = /** @type {Way} */ (WAYS[i]);
      again.hidden = wayPhrase(other) === way || (other.speculate !== "off" && state.about?.local?.lacks.includes("speculate") === true);
      again.disabled = run.live;
    });
  }

  /** @param {Way} way */
  write(way) {
    const run = this.store.run && this.session.adopt(this.store.run);
    if (!run) return;
    const request = this.session.requestOf(run);
    startRun(this.store, this.session, { ...request, settings: { ...request.settings, ...way } }, { name: run.name });
  }
}

customElements.define("text-ways", TextWays);
