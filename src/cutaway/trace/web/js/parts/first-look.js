/**
 * A line for newcomers above the recorded run, which leads to practice and help. It disappears with the recording.
 */

import { button, el, replace, setText } from "./dom.js";
import { pressHelp } from "./keys.js";
import { View } from "./view.js";

class FirstLook extends View {
  name = el("strong");

  build() {
    replace(this, el("p", {}, this.name, ": it continued the grey words. Click a token to see how it was chosen. ",
      button("Help", pressHelp, { class: "link" }), " · ",
      button("Practice", () => this.store.set({ panel: "lesson" }), { class: "link" })));
  }

  draw() {
    const { recording } = this.store.state;
    this.hidden = !this.store.showsRecording;
    setText(this.name, recording ? `Example, ${recording.name}` : "");
  }
}

customElements.define("first-look", FirstLook);
