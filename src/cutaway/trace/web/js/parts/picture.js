/**
 * A drawing as a picture: an SVG whose marks have the page's styles with them, painted on a canvas.
 */

import { SIZE, cardDrawing } from "../drawings/card.js";
import { cardOf } from "../figures/card.js";
import { renderMark, typeScale } from "./dom.js";
/** @import { Trace, Step } from "../state/trace.js" */

/** What a mark takes from the page's sheets. */
const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight",
  "text-anchor", "paint-order"];

/** @param {Trace} trace @param {Step} step @returns {Promise<Blob>} a PNG of 1200 × 630 */
export async function pictureOf(trace, step) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(inlineStyles(renderMark(cardDrawing(cardOf(trace, step), typeScale()))))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  Object.assign(canvas, SIZE);
  canvas.getContext("2d")?.drawImage(image, 0, 0);
  return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no picture"))), "image/png"));
}

/** @param {SVGElement} drawing @returns {string} the same, that needs no sheet */
function inlineStyles(drawing) {
  const host = document.createElement("river-view"); // unattached: its sheet is that of the river in the picture
  host.className = "share";
  host.append(drawing);
  document.body.append(host);
  for (const part of drawing.querySelectorAll("*")) {
    const style = getComputedStyle(part);
    for (const name of STYLES) part.setAttribute(name, style.getPropertyValue(name));
  }
  host.remove();
  for (const [name, value] of Object.entries(SIZE)) drawing.setAttribute(name, String(value));
  return new XMLSerializer().serializeToString(drawing);
}
