/**
 * What Python says once for the page: the stages of the chain and their settings, which of them is
 * the constraints' mask, the presets' orders, styles, the words on why a text ended, and the names
 * that fields of old traces have now. The document holds it as JSON (trace/catalogue.py), so a new stage needs no change here.
 */

/**
 * low, high, step   of the slider; the field beside it takes what lies beyond
 * off               the value at which the stage does nothing
 * @typedef {{name: string, type: string, off: any, help: string, low: number,
 *   high: number, step: number}} Param
 *
 * filter   whether it removes tokens and leaves the logits of the others as they are
 * @typedef {{name: string, letter: string, label: string, help: string, filter: boolean,
 *   params: Param[]}} StageEntry
 *
 * @typedef {{name: string, settings: Record<string, number>, help: string}} Style
 * choices  what a text may be; empty: it is a number
 * @typedef {{name: string, type: string, choices: string[], help: string}} CanvasSetting
 * @typedef {{canvas: CanvasSetting[], stages: StageEntry[], presets: Record<string, string[]>, styles: Style[],
 *   mask: string, phrases: Record<string, string>, trace: Format}} Catalogue
 *
 * renames  by kind of record and field: an old name, or value, and the one of today
 * @typedef {{version: number, readable: number[], renames: Record<string, Record<string, string>>}} Format
 */

/** @type {Catalogue} */
const catalogue = JSON.parse(document.querySelector("#catalogue")?.textContent ?? "");

export const stages = catalogue.stages;
export const presets = catalogue.presets;
export const styles = catalogue.styles;
export const mask = catalogue.mask;
export const canvasSettings = catalogue.canvas;
export const format = catalogue.trace;

/**
 * @param {string} name @param {Record<string, string | number>} [figures]
 * @returns {string} Python's phrase of this name with its figures
 */
export const phrase = (name, figures = {}) =>
  (catalogue.phrases[name] ?? name).replaceAll(/\{(\w+)\}/g, (_, place) => String(figures[place] ?? ""));

/** @type {Map<string, StageEntry>} */
export const stageNamed = new Map(stages.map((stage) => [stage.name, stage]));

/** @param {string} name @returns {boolean} whether a stage changes logits token by token, such as a penalty */
export const isAdjusting = (name) => name !== "temperature" && stageNamed.get(name)?.filter === false;

/** @param {(stage: StageEntry) => boolean} which @returns {Param[]} settings of those stages that are numbers */
export const numbersOf = (which) => stages.filter(which).flatMap(({ params }) =>
  params.filter(({ type }) => type === "float" || type === "int"));

/** @returns {Record<string, any>} the settings with which no filter removes anything */
export const filtersOff = () =>
  Object.fromEntries(numbersOf(({ filter }) => filter).map(({ name, off }) => [name, off]));

/** @param {string} name of a setting @returns {string} as people read it: "top-k" */
export const labelOf = (name) => name.replaceAll("_", "-");
