/**
 * The panels below the river. Knows that they are tabs; their list is in state/panels.js.
 */

import { el, setText } from "../parts/dom.js";
import { Tabs } from "../parts/tabs.js";
import { GROUPS, applies } from "../state/panels.js";

/** Panels that have content without a step. */
const FREE = ["near", "canvas", "lesson"];

class PanelTabs extends Tabs {
  label = "Panels";
  groups = GROUPS;
  nothing = el("p", { class: "nothing faint" });

  build() {
    super.build();
    this.firstElementChild?.after(this.nothing);
  }

  draw() {
    super.draw();
    const { run, state } = this.store;
    this.nothing.hidden = !run || run.trace.steps.length > 0 || FREE.includes(state.panel);
    setText(this.nothing, run?.live
      ? "The first token is on its way."
      : "This run has no token to look at: write a text, click one of the examples, or choose another run at the top.");
  }

  /** @param {string} name */
  applies(name) {
    return applies(name, this.store.state);
  }
}

customElements.define("panel-tabs", PanelTabs);
