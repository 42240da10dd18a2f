/**
 * The data that Python writes into the document as JSON (trace/page.py): the sampling stages and their settings,
 * which of them is the constraints' mask, which settings people use, presets, styles, the phrases on why a text ended, what
 * each figure means, and the current names of fields of old traces. So a new stage needs no change here.
 */

/**
 * low, high, step   of the slider; the field beside it takes any value
 * off               the value at which the stage does nothing
 * @typedef {{name: string, type: string, off: any, help: string, low: number,
 *   high: number, step: number}} Param
 *
 * filter   whether it only removes tokens, and does not change logits
 * rule     by a setting's name in a trace's chain: that of the request's
 * switches the settings that turn it on; at_zero: whether it is applied at temperature 0, too
 * history  whether it looks at the text so far
 * law      how its one number acts: "divide", "count", "share", "ratio"; "": none of these
 * @typedef {{name: string, letter: string, label: string, help: string, filter: boolean, params: Param[],
 *   rule: Record<string, string>, switches: string[], at_zero: boolean, history: boolean, law: string}} StageEntry
 *
 * @typedef {{name: string, settings: Record<string, number>, help: string}} Style
 * choices  the values of a text setting; empty: it is a number
 * @typedef {{name: string, type: string, choices: string[], help: string}} CanvasSetting
 * @typedef {{canvas: CanvasSetting[], stages: StageEntry[], presets: Record<string, string[]>, styles: Style[],
 *   usual: string[], mask: string, heat: {colour: number[], most: number}, phrases: Record<string, string>,
 *   glosses: Record<string, string>, trace: Format}} Catalogue
 *
 * renames  by kind of record and field: an old name or value, and the current one
 * @typedef {{version: number, readable: number[], renames: Record<string, Record<string, string>>}} Format
 */

/** @type {Catalogue} */
const catalogue = JSON.parse(document.querySelector("#catalogue")?.textContent ?? "");

export const stages = catalogue.stages;
export const presets = catalogue.presets;
export const styles = catalogue.styles;
export const usual = catalogue.usual;
export const mask = catalogue.mask;
export const canvasSettings = catalogue.canvas;
export const format = catalogue.trace;

/** @param {number} share 0 to 1 @returns {string} the colour of every measure: the larger, the more opaque */
export const heat = (share) => `rgb(${catalogue.heat.colour.join(" ")} / ${
  (catalogue.heat.most * Math.min(Math.max(share, 0), 1)).toFixed(3)})`;

/**
 * @param {string} name @param {Record<string, string | number>} [figures]
 * @returns {string} the phrase of this name with its figures
 */
export const phrase = (name, figures = {}) =>
  (catalogue.phrases[name] ?? name).replaceAll(/\{(\w+)\}/g, (_, place) => String(figures[place] ?? ""));

/** @param {string} name of a figure @returns {string} what it means, in a sentence */
export function gloss(name) {
  const sentence = catalogue.glosses[name];
  if (!sentence) throw new Error(`there is no gloss for ${name}`);
  return sentence;
}

/** @type {Map<string, StageEntry>} */
export const stageNamed = new Map(stages.map((stage) => [stage.name, stage]));

/** @param {string} name @returns {boolean} whether a stage changes the logits of single tokens, as a penalty does */
export const isAdjusting = (name) => name !== "temperature" && stageNamed.get(name)?.filter === false;

/** @param {string} name @returns {boolean} whether a stage only removes tokens */
export const filters = (name) => stageNamed.get(name)?.filter === true;

/** @param {(stage: StageEntry) => boolean} matches @returns {Param[]} the numeric settings of those stages */
export const numbersOf = (matches) => stages.filter(matches).flatMap(({ params }) =>
  params.filter(({ type }) => type === "float" || type === "int"));

/** @returns {Record<string, any>} the settings with which no filter removes anything */
export const filtersOff = () =>
  Object.fromEntries(numbersOf(({ filter }) => filter).map(({ name, off }) => [name, off]));

/** @param {string} name of a setting @returns {string} as it is shown: "top-k" */
export const labelOf = (name) => name.replaceAll("_", "-");
