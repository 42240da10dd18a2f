/**
 * A step as words that fall on the caret: the drawn token lands in the line, its rivals stay above it. The area of a word
 * is its probability after the chain. Knows shapes, and no time.
 */

import { wordOf } from "../figures/numbers.js";
import { group, label, round } from "./marks.js";
/** @import { Mark } from "./marks.js" */
/** @import { Rival } from "../figures/rivals.js" */

const WHOLE = 34; // pixels of the type of a token of 100 %
const CLEAR = 20; // pixels from the line to the lowest rival

/** @param {number} share @returns {number} pixels of the type, so that the area is the share */
export const sizeOf = (share) => WHOLE * Math.sqrt(share);

/**
 * @param {{token: Rival, rivals: Rival[]}} step @param {number} [scale] of the type
 * @returns {Mark} from the caret at the foot of the line; the likeliest rival is the lowest
 */
export function falling({ token, rivals }, scale = 1) {
  let y = -CLEAR;
  const words = rivals.map(({ name, share }) => {
    const word = label(0, round(y * scale), wordOf(name), "measured", { "font-size": round(sizeOf(share) * scale) });
    y -= sizeOf(share);
    return word;
  });
  return group("step", ...words, label(0, 0, wordOf(token.name), "chosen", { "font-size": round(sizeOf(token.share) * scale) }));
}
