/**
 * Prompts to click, each with a seed, so that the same click writes the same text on the same model.
 *
 * Knows what a kind of model can do with a prompt. Does not know how a request is made.
 */

import { button, el } from "../parts/dom.js";
import { generates } from "../state/panels.js";
/** @import { About } from "../state/store.js" */

/** @typedef {{prompt: string, seed: string, settings?: Record<string, any>}} Example */

/** @type {Example[]} */
export const QUESTIONS = [
  { prompt: "Explain gravity to a child in one sentence.", seed: "1" },
  { prompt: "Tell me a joke about a cat.", seed: "3" },
  { prompt: "Give me three names for a pet snail.", seed: "2" },
];

/** @type {Example[]} */
const BEGINNINGS = [
  { prompt: "My grandmother always said that", seed: "7" },
  { prompt: "Roses are red, violets are blue,", seed: "3" },
  { prompt: "The recipe begins with two eggs and", seed: "3" },
];

const CANVAS = { max_tokens: 48 }; // cells: few enough to follow

/** @type {Example[]} for a diffusion model, which writes all places of a canvas */
const CANVASES = [
  { prompt: "Mr. Darcy ", seed: "1", settings: CANVAS },
  { prompt: "It is a truth ", seed: "2", settings: CANVAS },
  { prompt: "In the evening ", seed: "3", settings: CANVAS },
];

/** @param {About | null} about @returns {Example[]} none where the model writes no text */
export const beginnings = (about) => (!about || !generates(about) ? [] : about.canvas ? CANVASES : BEGINNINGS);

/**
 * @param {Example[]} examples @param {(example: Example) => void} take
 * @returns {HTMLElement} a button for each
 */
export const exampleButtons = (examples, take) => el("div", { class: "examples", role: "group", "aria-label": "Examples" },
  ...examples.map((example) => button(example.prompt.trim(), () => take(example), { title: `with seed ${example.seed}` })));
