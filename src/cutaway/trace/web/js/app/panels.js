/**
 * The panels below the text and the step's figures. Knows their names and order, and nothing in them.
 */

import { Tabs } from "../parts/tabs.js";

class PanelTabs extends Tabs {
  label = "Panels";
  /** @type {import("../parts/tabs.js").TabSpec[]} */
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
   * @param {string} name "canvas" needs a diffusion model, or a run of one; "inside" and "without" need a causal model
   */
  applies(name) {
    const { about, runs } = this.store.state;
    if (name === "inside" || name === "without") return !about || about.attention === "causal";
    return name !== "canvas" || Boolean(about?.canvas) || runs.some((run) => run.trace.known?.decoder);
  }
}

customElements.define("panel-tabs", PanelTabs);
