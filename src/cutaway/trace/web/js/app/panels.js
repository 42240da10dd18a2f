/**
 * The panels below the machine. Knows that they are tabs; their list is in state/panels.js.
 */

import { Tabs } from "../parts/tabs.js";
import { ALL, applies } from "../state/panels.js";

class PanelTabs extends Tabs {
  label = "Panels";
  all = ALL;

  /** @param {string} name */
  applies(name) {
    return applies(name, this.store.state);
  }
}

customElements.define("panel-tabs", PanelTabs);
