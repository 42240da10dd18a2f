/** A run to learn from, where there is none yet. */

import { styles } from "../figures/catalogue.js";
import { el } from "../parts/dom.js";
/** @import { View } from "../parts/view.js" */

const STYLE = styles.find(({ name }) => name === "balanced");
const PROMPT = "The cat sat on the"; // as the exercises begin

/** @param {View} view @returns {HTMLButtonElement} writes the sample, and selects a step that others follow */
export function sampleButton(view) {
  return el("button", { type: "button", onclick: () => write(view) }, `Write a sample: “${PROMPT} …”`);
}

/** @param {View} view */
async function write(view) {
  const run = await view.session.start({ kind: "completion", prompt: PROMPT, messages: [], forced: [], seed: "35",
    settings: { ...STYLE?.settings, max_tokens: 96, ignore_eos: false } });
  if (view.store.run === run) view.store.goTo(Math.floor(run.trace.steps.length / 8));
}
