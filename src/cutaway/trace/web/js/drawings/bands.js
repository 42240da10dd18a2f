/**
 * What layers with a recurrent state keep: a band for each layer, the first at the bottom, a piece for each token from the
 * first to the last, as opaque as its share of what the layer's heads read from their states. A line marks from where on
 * half of it comes.
 */

import { heat } from "../figures/catalogue.js";
import { percent, thousands } from "../figures/numbers.js";
import { LEAST } from "./tower.js";
import { group, label, mark, path, picture, round } from "./marks.js";
/** @import { StateLayer } from "../figures/attention.js" */
/** @import { Mark } from "./marks.js" */

const [LEFT, HEAD, PITCH] = [38, 18, 14]; // pixels, in type of the usual size

/**
 * @param {StateLayer[]} layers @param {(position: number) => string} tokenAt @param {{width: number, type: number}} room
 * @param {string} sentence @returns {Mark}
 */
export function bands(layers, tokenAt, { width: room, type }, sentence) {
  const width = Math.max(room, LEAST * type);
  const [left, top, pitch] = [LEFT * type, HEAD * type, PITCH * type];
  const count = layers[0]?.keeps.length ?? 0;
  const piece = (width - left) / Math.max(count, 1);
  return picture({ width, height: top + layers.length * pitch }, sentence,
    label(left, top - 6 * type, `the first token: ${tokenAt(0)}`), label(width, top - 6 * type, `the last: ${tokenAt(count - 1)}`, "label end"),
    ...layers.map(({ layer, keeps, half }, i) => {
      const y = top + (layers.length - 1 - i) * pitch;
      const largest = Math.max(...keeps, 1e-9);
      return group("row", label(0, y + pitch / 2 + 3.6 * type, `L${layer}`),
        ...Array.from(keeps, (share, at) => mark("rect", { class: "measured band", x: round(left + at * piece), y: y + 1, width: round(piece), height: pitch - 2,
          fill: heat(share / largest) }, mark("title", {}, `layer ${layer}, position ${thousands(at)}, ${tokenAt(at)}: ${percent(share)}`))),
        path(`M${round(left + (count - half) * piece)} ${y}v${pitch}`, "half", `half of layer ${layer}'s comes from the tokens right of here`));
    }));
}
