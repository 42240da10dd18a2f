/**
 * Maps steps to columns of pixels, and columns to the paths of an SVG.
 *
 * A column shows the largest of the steps that share its pixels, so that a peak among thousands of steps stays visible.
 * Knows numbers only: no trace, no document.
 */

/**
 * The visible part: `first` is the step at the left edge, which may be a fraction; `step` the pixels per step; `width`
 * all pixels; `count` the number of steps.
 * @typedef {{first: number, step: number, width: number, count: number}} Sight
 *
 * Column i holds the steps edges[i] … edges[i + 1] − 1, and begins at x = left + i · wide.
 * @typedef {{edges: Int32Array, left: number, wide: number}} Columns
 */

/**
 * @param {Sight} sight
 * @returns {Columns} a column for each visible step, or for each pixel where steps are narrower
 */
export function columnsOf({ first, step, width, count }) {
  const wide = Math.max(step, 1);
  const per = wide / step; // steps of a column
  const start = Math.max(Math.floor(first), 0);
  const stop = Math.max(Math.min(Math.ceil(first + width / step), count), start);
  const edges = new Int32Array(Math.ceil((stop - start) / per - 1e-9) + 1); // rounding errors add no column
  for (let i = 0; i < edges.length; i++) edges[i] = Math.min(start + Math.ceil(i * per), stop);
  edges[edges.length - 1] = stop; // despite rounding errors
  return { edges, left: (start - first) * step, wide };
}

/**
 * @param {(step: number) => number} value −Infinity: never shown
 * @param {Int32Array} edges
 * @returns {Int32Array} for each column the step with the largest value, the first of equal ones; −1: none
 */
export function peaks(value, edges) {
  const steps = new Int32Array(edges.length - 1).fill(-1);
  for (let column = 0; column < steps.length; column++) {
    let largest = -Infinity;
    for (let at = edges[column] ?? 0; at < (edges[column + 1] ?? 0); at++) {
      const here = value(at);
      if (here <= largest) continue;
      largest = here;
      steps[column] = at;
    }
  }
  return steps;
}

/**
 * Bars from the bottom of a row, one path for each bucket. Their edges are on whole pixels.
 * @template B
 * @param {Columns} columns @param {Int32Array} steps which step each column shows; −1: none
 * @param {(step: number) => B | null} bucket the key of its colour; null: no bar
 * @param {(step: number) => number} high its height in pixels
 * @param {number} foot y of the row's foot
 * @param {(step: number) => number} [baseOf] pixels between the foot and the bar: 0
 * @returns {Map<B, string>}
 */
export function bars({ left, wide }, steps, bucket, high, foot, baseOf = () => 0) {
  /** @type {Map<B, string>} */
  const paths = new Map();
  const air = wide >= 3 ? 1 : 0;
  for (let column = 0; column < steps.length; column++) {
    const step = steps[column] ?? -1;
    const key = step < 0 ? null : bucket(step);
    if (key === null) continue;
    const from = Math.round(left + column * wide);
    const across = Math.max(Math.round(left + (column + 1) * wide) - from - air, 1);
    const up = tenth(high(step));
    const bar = `M${from} ${tenth(foot - baseOf(step))}v${-up}h${across}v${up}z`;
    paths.set(key, (paths.get(key) ?? "") + bar);
  }
  return paths;
}

/** @param {number} value @returns {number} a tenth of a pixel is enough */
const tenth = (value) => Math.round(value * 10) / 10;

/** @param {Sight} sight @param {number} x @returns {number} the step at a pixel */
export function stepAt({ first, step, count }, x) {
  return Math.max(0, Math.min(Math.floor(first + x / step), count - 1));
}

/** @param {Sight} sight @param {number} index @returns {number} x of its middle */
export const middleOf = ({ first, step }, index) => (index + 0.5 - first) * step;

/**
 * The number of steps that fill the width. For a growing run it is the next power of two, so that its bars do not
 * move with every step.
 * @param {number} count @param {boolean} live @returns {number} at least 1
 */
export const spanOf = (count, live) =>
  (live ? Math.max(64, 2 ** Math.ceil(Math.log2(Math.max(count, 1)))) : Math.max(count, 1));

/**
 * The top of a scale: 1, 2 or 5 times a power of ten, at least the given value.
 * @param {number} value @returns {number} 1 where the value is not above 0
 */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const ten = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 5].find((n) => n * ten >= value * (1 - 1e-9)) ?? 10) * ten;
}

/**
 * A quantile, as the top of a scale that outliers do not stretch.
 * @param {number[]} values @param {number} [share] @returns {number}
 */
export function nearlyAll(values, share = 0.98) {
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.min(Math.floor(sorted.length * share), sorted.length - 1)] ?? 0;
}
