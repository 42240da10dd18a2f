/** A sample run for the lessons, where there is no run yet. */

import { styles } from "../figures/catalogue.js";
import { button } from "../parts/dom.js";
/** @import { View } from "../parts/view.js" */

const STYLE = styles.find(({ name }) => name === "balanced");
const PROMPT = "The cat sat on the"; // as in the exercises

/** @param {View} view @returns {HTMLButtonElement} generates the sample, and selects one of its first steps */
export function sampleButton(view) {
  return button(`Write a sample: “${PROMPT} …”`, () => write(view));
}

/** @param {View} view */
async function write(view) {
  const run = await view.session.start({ kind: "completion", prompt: PROMPT, messages: [], forced: [], seed: "35",
    settings: { ...STYLE?.settings, max_tokens: 96, ignore_eos: false } });
  if (view.store.run === run) view.store.goTo(Math.floor(run.trace.steps.length / 8));
}
