/**
 * Steps to columns of pixels, and columns to the paths of an SVG.
 *
 * A column holds the steps that share its pixels and shows the largest of them: a peak among
 * thousands of steps stays in sight. Knows numbers only: no trace, no document.
 */

/**
 * What is in sight: `first` is the step at the left edge, which may be a fraction; `step` the
 * pixels that a step takes; `width` the pixels there are; `count` how many steps there are.
 * @typedef {{first: number, step: number, width: number, count: number}} Sight
 *
 * Column i holds the steps edges[i] … edges[i + 1] − 1, and begins at x = left + i · wide.
 * @typedef {{edges: Int32Array, left: number, wide: number}} Columns
 */

/**
 * @param {Sight} sight
 * @returns {Columns} a column for each step in sight, or for each pixel where steps are narrower
 */
export function columnsOf({ first, step, width, count }) {
  const wide = Math.max(step, 1);
  const per = wide / step; // steps of a column
  const start = Math.max(Math.floor(first), 0);
  const stop = Math.max(Math.min(Math.ceil(first + width / step), count), start);
  const edges = new Int32Array(Math.ceil((stop - start) / per - 1e-9) + 1); // rounding adds none
  for (let i = 0; i < edges.length; i++) edges[i] = Math.min(start + Math.ceil(i * per), stop);
  edges[edges.length - 1] = stop; // whatever rounding did
  return { edges, left: (start - first) * step, wide };
}

/**
 * @param {(step: number) => number} value −Infinity: never shown
 * @param {Int32Array} edges
 * @returns {Int32Array} for each column its step with the largest value, of equals the first; −1
 *   where there is none
 */
export function peaks(value, edges) {
  const found = new Int32Array(edges.length - 1).fill(-1);
  for (let column = 0; column < found.length; column++) {
    let most = -Infinity;
    for (let at = edges[column] ?? 0; at < (edges[column + 1] ?? 0); at++) {
      const here = value(at);
      if (here <= most) continue;
      most = here;
      found[column] = at;
    }
  }
  return found;
}

/**
 * Bars from the foot of a row, one path for each bucket. Their edges lie on whole pixels.
 * @template B
 * @param {Columns} columns @param {Int32Array} shown which step each column shows; −1: none
 * @param {(step: number) => B | null} bucket what decides its colour; null: no bar
 * @param {(step: number) => number} high its height in pixels
 * @param {number} foot y of the row's foot
 * @param {(step: number) => number} [under] pixels between the foot and the bar: 0
 * @returns {Map<B, string>}
 */
export function bars({ left, wide }, shown, bucket, high, foot, under = () => 0) {
  /** @type {Map<B, string>} */
  const paths = new Map();
  const air = wide >= 3 ? 1 : 0;
  for (let column = 0; column < shown.length; column++) {
    const step = shown[column] ?? -1;
    const which = step < 0 ? null : bucket(step);
    if (which === null) continue;
    const from = Math.round(left + column * wide);
    const across = Math.max(Math.round(left + (column + 1) * wide) - from - air, 1);
    const up = tenth(high(step));
    const bar = `M${from} ${tenth(foot - under(step))}v${-up}h${across}v${up}z`;
    paths.set(which, (paths.get(which) ?? "") + bar);
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
 * How many steps the whole width stands for. A run that grows takes the next power of two, so that
 * its bars stay where they are until it is full.
 * @param {number} count @param {boolean} live @returns {number} at least 1
 */
export const spanOf = (count, live) =>
  (live ? Math.max(64, 2 ** Math.ceil(Math.log2(Math.max(count, 1)))) : Math.max(count, 1));

/**
 * The top of a scale: 1, 2 or 5 times a power of ten, not below what is asked for.
 * @param {number} value @returns {number} 1 where nothing is above zero
 */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const ten = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 5].find((n) => n * ten >= value * (1 - 1e-9)) ?? 10) * ten;
}

/**
 * What all but the rarest values stay below: one that is far out shall not flatten the others.
 * @param {number[]} values @param {number} [share] @returns {number}
 */
export function nearlyAll(values, share = 0.98) {
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.min(Math.floor(sorted.length * share), sorted.length - 1)] ?? 0;
}
