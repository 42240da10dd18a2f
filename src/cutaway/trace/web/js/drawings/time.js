/**
 * The time of a step as a bar, to scale; and all steps so far as a staircase: as wide as a step took, as high as the
 * number of tokens that it read. The first block is the prompt's.
 */

import { thousands } from "../figures/numbers.js";
import { box, mark, path, picture, round } from "./marks.js";
/** @import { Mark } from "./marks.js" */
/** @import { Part, Times } from "../figures/time.js" */

const TITLE = "all steps so far: as wide as their time, as high as the tokens that they read";

/** @param {Part[]} parts @param {{width: number, height: number}} size @returns {Mark} */
export function timeBar(parts, size) {
  const whole = parts.reduce((sum, { ms }) => sum + ms, 0) || 1;
  let x = 0;
  return picture(size, "", ...parts.map(({ name, ms }) => {
    const [from, width] = [x, (ms / whole) * size.width];
    x += width;
    return box({ x: from, y: 0, width, height: size.height }, name.endsWith("model") ? "measured" : "rest", `${name} ${ms.toFixed(1)} ms`);
  }));
}

/**
 * @param {Times} times @param {number} here the index of the block of the selected step @param {{width: number, height: number}} size
 * @returns {Mark}
 */
export function staircase({ blocks, ms }, here, size) {
  const { width, height } = size;
  const maximum = blocks.reduce((largest, { tokens }) => Math.max(largest, tokens), 1);
  let [x, d, drawnTo] = [0, `M0 ${height}`, -1];
  /** @type {Mark[]} */
  const marked = [];
  blocks.forEach(({ ms: took, tokens }, i) => {
    const [from, to, y] = [x, x + (took / (ms || 1)) * width, height * (1 - tokens / maximum)];
    if (to - drawnTo >= 0.5 || i === blocks.length - 1) { // steps of less than a pixel share one
      d += `V${round(y)}H${round(to)}`;
      drawnTo = to;
    }
    x = to;
    const place = { x: round(from), y: round(y), width: Math.max(round(to - from), 1.5), height: round(height - y) };
    if (i === here) marked.push(box(place, "chosen"));
    if (i === 0) marked.push(path(`M${round(to)} 0V${height}`, "axis", `left of it: the prompt, ${thousands(tokens)} tokens`));
  });
  return picture(size, "", path(`${d}V${height}Z`, "measured"), ...marked, mark("title", {}, TITLE));
}
