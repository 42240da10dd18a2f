/**
 * The marks of which drawings are made. A drawing is a pure function from figures to marks: plain objects, which
 * `renderMark` of parts/dom.js turns into SVG, and which tests read in Node. Knows shapes, and neither a document nor a store.
 *
 * The classes are the page's vocabulary (docs/page.md): "measured" is what the record has, "chosen" is what was drawn or
 * is selected, "cut" is what a stage removed, "rest" is what the record sums up, "axis" and "label" explain.
 */

/**
 * @typedef {{name: string, attributes: Record<string, any>, children: (Mark | string)[]}} Mark
 * `attributes` as for an element of parts/dom.js, without listeners; a false or missing value leaves the attribute out.
 */

/** @param {string} name of an SVG element @param {Record<string, any>} [attributes] @param {(Mark | string)[]} children @returns {Mark} */
export const mark = (name, attributes = {}, ...children) => ({ name, attributes, children });

/** @param {string} kind @param {(Mark | string)[]} children @returns {Mark} marks that belong together */
export const group = (kind, ...children) => mark("g", { class: kind }, ...children);

/** @param {{x: number, y: number, width: number, height: number}} place @param {string} kind @param {string} [title] @returns {Mark} */
export const box = (place, kind, title) => mark("rect", { ...place, class: kind }, ...titles(title));

/** @param {string} d @param {string} kind @param {string} [title] @returns {Mark} */
export const path = (d, kind, title) => mark("path", { d, class: kind }, ...titles(title));

/** @param {number} x @param {number} y @param {string} words @param {string} [kind] @param {Record<string, any>} [attributes] @returns {Mark} */
export const label = (x, y, words, kind = "label", attributes = {}) => mark("text", { x, y, class: kind, ...attributes }, words);

/**
 * @param {{width: number, height: number}} size in the drawing's units
 * @param {string} sentence what the drawing says, for those who do not see it; "": a table beside says it
 * @param {Mark[]} marks @returns {Mark} the whole drawing
 */
export const picture = ({ width, height }, sentence, ...marks) => mark("svg", { viewBox: `0 0 ${width} ${height}`,
  ...(sentence ? { role: "img", "aria-label": sentence } : { "aria-hidden": "true" }) }, ...marks);

/** @param {string | undefined} title @returns {Mark[]} */
const titles = (title) => (title ? [mark("title", {}, title)] : []);

/** @param {number} pixels @returns {number} to hundredths, which is enough */
export const round = (pixels) => Math.round(pixels * 100) / 100;
