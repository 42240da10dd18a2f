/**
 * Where the parts of the river are, and what its marks share.
 */

import { clip, percent, visible, withSign } from "../figures/numbers.js";
/** @import { Band } from "../figures/river.js" */

/**
 * The edges of each band in a column, from and to in pixels, the rest last; null: it has no share there.
 * @typedef {([number, number] | null)[]} Stack
 */

/**
 * x: where the flow begins and ends, luck's axis begins and ends, the token's card begins; gates: the left side of each
 * @typedef {{width: number, height: number, scale: number, top: number, deep: number, gate: number, lane: number, gates: number[],
 *   start: number, flow: number, luck: number, goal: number, card: number, tray: number, small: boolean}} Layout
 */

/** @param {number} gates how many @param {number} width in pixels @param {number} scale of the type @returns {Layout} */
export function layoutOf(gates, width, scale) {
  const small = width < 560 * scale;
  const [left, card, luckWide] = small ? [88, 62, 0.2 * width / scale] : [164, 118, Math.min(260, 0.24 * width / scale)];
  const [start, last] = [left * scale, width - card * scale];
  const gate = 10 * scale;
  const reach = gates ? last - luckWide * scale - start : Math.min(60 * scale, last - start - luckWide * scale);
  const lane = reach / Math.max(gates, 1);
  const flow = start + reach;
  return {
    width, scale, small, gate, lane, start, flow, top: 30 * scale, deep: 136 * scale, tray: 180 * scale, height: 212 * scale,
    gates: Array.from({ length: gates }, (_, i) => start + (i + 0.3) * lane), luck: flow + 26 * scale, goal: last - 14 * scale, card: last,
  };
}

/** @param {number} value @returns {number} a thousandth of a pixel */
export const n = (value) => Math.round(value * 1000) / 1000;

/**
 * @param {{from: number, y: number}[]} all from top to bottom; their y are moved apart @param {number} low @param {number} high
 * @param {number} maximum the gap where there is room
 */
export function spread(all, low, high, maximum) {
  const gap = all.length > 1 ? Math.min((high - low) / (all.length - 1), maximum) : 0;
  let before = -Infinity;
  for (const item of all) before = item.y = Math.max(item.from, before + gap, low);
  let after = Infinity;
  for (const item of all.toReversed()) after = item.y = Math.min(item.y, after - gap, high);
}

/** @param {string} words @param {number} width @param {number} scale @returns {boolean} whether a label of them is narrower */
export const fits = (words, width, scale) => words.length * 6.2 * scale < width;

/** @param {string} token @param {number} limit of characters @returns {string} */
export const short = (token, limit) => clip(visible(token), limit);

/** @param {Band} band @returns {string} its probabilities, one after the other, and its luck */
export function bandTitle({ token, shares, luck, score }) {
  const words = shares.filter((share) => share !== undefined).map((share) => (share === null ? "cut off" : percent(share)));
  const way = words.filter((word, i) => word !== words[i - 1]).join(" → ");
  return `${visible(token)}: ${way}${luck === null ? "" : `; luck ${withSign(luck)}, score ${withSign(score ?? 0)}`}`;
}
