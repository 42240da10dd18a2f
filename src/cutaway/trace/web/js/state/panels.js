/**
 * The panels below the text: their names, labels, elements and groups, and which of them a model has content for.
 *
 * Knows nothing in them, and no document.
 */

/** @import { State } from "./store.js" */

/** @type {Record<string, [name: string, label: string, element: string][]>} by what they are about */
export const GROUPS = {
  "this step": [
    ["step", "Step", "step-waterfall"],
    ["inside", "Inside", "inside-panel"],
    ["without", "Leave out", "without-panel"],
    ["what-if", "What if", "what-if"],
  ],
  "this text": [
    ["canvas", "Canvas", "canvas-panel"],
    ["timelines", "Timelines", "run-timelines"],
    ["why", "Why it ended", "why-panel"],
  ],
  "other texts": [
    ["tree", "Branches", "branch-tree"],
    ["near", "Compare texts", "near-panel"],
    ["lesson", "Practice", "lesson-panel"],
  ],
};

/** @type {Record<string, string>} panels of earlier addresses and guides, and those that have their content now */
const MERGED = { compare: "tree" };

/** @param {string} name in an address or a guide @returns {string} */
export const currentPanel = (name) => MERGED[name] ?? name;

/** The panels by name. */
export const PANELS = new Map(Object.values(GROUPS).flat().map(([name, label, element]) => [name, { label, element }]));

/** @param {{ attention?: string | number }} about @returns {boolean} whether the model continues texts: later tokens change nothing in them */
export const continuesTexts = (about) => about.attention === "causal" || about.attention === "prefix-lm";

/** @param {State["about"]} about @returns {boolean} whether the model writes texts; encoders and rerankers write none */
export const generates = (about) => about?.writes ?? (!about || continuesTexts(about) || Boolean(about.canvas));

/** @param {State["about"]} about @returns {boolean} whether the model only compares texts, so that the page has nothing to write with */
export const onlyCompares = (about) => Boolean(about?.near) && !generates(about);

/** @param {State["about"]} about @returns {string} the panel that shows what such a model does */
export const firstPanel = (about) => (onlyCompares(about) ? "near" : about?.canvas ? "canvas" : "step");

/**
 * @param {string} name "near" needs a model that compares texts, "canvas" needs a diffusion model, or a run of one; "inside" needs a causal model that can be looked into, "without" also a server
 * @param {State} state @returns {boolean} whether the panel can have any content
 */
export function applies(name, { about, runs }) {
  if (name === "near") return Boolean(about?.near);
  if (name === "without" && about?.local) return false;
  if (name === "inside" || name === "without") return !about || (continuesTexts(about) && about.writes !== false && about.local?.inside !== false);
  return name !== "canvas" || Boolean(about?.canvas) || runs.some((run) => run.trace.known?.decoder);
}
