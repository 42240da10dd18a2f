/**
 * A share as a bar, as wide as it is of 100 %.
 */

import { box, picture } from "./marks.js";
/** @import { Mark } from "./marks.js" */

const WIDE = 100;
const HIGH = 8;

/** @param {number} share 0 to 1 @param {boolean} isChosen whether it is of what was chosen @returns {Mark} */
export function shareBar(share, isChosen) {
  const { name, attributes, children } = picture({ width: WIDE, height: HIGH }, "",
    box({ x: 0, y: 0, width: WIDE, height: HIGH }, "axis"),
    box({ x: 0, y: 0, width: WIDE * share, height: HIGH }, isChosen ? "chosen" : "measured"));
  return { name, attributes: { ...attributes, preserveAspectRatio: "none" }, children };
}
