/**
 * The panels below the text and the step's figures: the step itself, the whole run, what else there is. Knows their names and order, and nothing in them.
 */

import { Tabs } from "../parts/tabs.js";

class PanelTabs extends Tabs {
  label = "Panels";
  /** @type {import("../parts/tabs.js").Part[]} */
  all = [
    ["step", "Step", "step-waterfall"],
    ["canvas", "Canvas", "canvas-panel"],
    ["timelines", "Timelines", "run-timelines"],
    ["inside", "Inside", "inside-panel"],
    ["without", "Without", "without-panel"],
    ["why", "Why it ended", "why-panel"],
    ["what-if", "What if", "what-if"],
    ["tree", "Branches", "branch-tree"],
    ["compare", "Two runs", "run-compare"],
    ["lesson", "Lesson", "lesson-panel"],
  ];

  /**
   * @param {string} name a canvas needs a model that writes one, or a run on record that is one; what the
   *   model computes again of a step needs a causal model
   */
  applies(name) {
    const { about, runs } = this.store.state;
    if (name === "inside" || name === "without") return !about || about.attention === "causal";
    return name !== "canvas" || Boolean(about?.canvas) || runs.some((run) => run.trace.known?.decoder);
  }
}

customElements.define("panel-tabs", PanelTabs);
