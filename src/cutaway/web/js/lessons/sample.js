/** A run to learn from, for whoever has none yet. */

import { el } from "../parts/dom.js";
/** @import { View } from "../parts/view.js" */

const PROMPT = "The cat sat on the"; // as the exercises begin

/** @param {View} view @returns {HTMLButtonElement} writes the sample, and selects a step that others follow */
export function sampleButton(view) {
  return el("button", { type: "button", onclick: () => write(view) }, `Write a sample: “${PROMPT} …”`);
}

/** @param {View} view */
async function write(view) {
  const run = await view.runs.start({ kind: "completion", prompt: PROMPT, messages: [], forced: [], seed: "35",
    settings: { max_tokens: 96, temperature: 0.7, top_p: 0.9, ignore_eos: false } });
  if (view.here.run === run) view.here.goTo(Math.floor(run.trace.steps.length / 8));
}
