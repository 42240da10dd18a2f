/**
 * The attention of a head as a drawing: a row for each of its most attended positions with the terms of q·k, upwards where
 * they are positive, as high as their square root; their sum, the score; and the weight; below, softmax: the curve
 * exp(score − whole), on which each position is a point. Without scores, bars show the weights.
 */

import { scoreText } from "../figures/attention.js";
import { clip, percent, thousands, withSign } from "../figures/numbers.js";
import { box, group, label, mark, path, picture, round } from "./marks.js";
import { LEAST } from "./tower.js";
/** @import { Attended, Attention } from "../figures/attention.js" */
/** @import { Mark } from "./marks.js" */

/** @typedef {{width: number, type: number}} Room pixels of the drawing; how much larger than usual the type is */

const [HEAD, PITCH, CURVE] = [18, 17, 92]; // pixels: of headings, a row, and the curve
const NO = 14, TOKEN = 76, SCORE = 46, SHARE = 46, AIR = 6; // pixels of the columns, in type of the usual size
const CHARACTER = 6.4;

/**
 * @param {Attention} attention @param {(position: number) => string} tokenAt @param {Room} room @param {string} sentence
 * @returns {Mark}
 */
export function attentionDrawing({ rows, whole, other }, tokenAt, { width: room, type }, sentence) {
  const width = Math.max(room, LEAST * type);
  const scored = whole !== null;
  const [top, pitch, left] = [HEAD * type, PITCH * type, (NO + TOKEN) * type];
  const strip = scored && rows.some(({ terms }) => terms.length) ? width - left - (SCORE + SHARE + 2 * AIR) * type : 0;
  const sizes = { strip: left, wide: strip, bar: left, long: scored ? 0 : width - left - (SHARE + AIR) * type, width, pitch, type,
    largest: Math.max(...rows.flatMap(({ terms }) => [...terms].map(Math.abs)), 1e-9) };
  const foot = top + (rows.length + (other.count ? 1 : 0)) * pitch;
  const height = foot + (scored ? (CURVE + 24) * type : 0);
  return picture({ width, height }, sentence,
    ...(strip ? [label(left, top - 6 * type, `q·k: ${rows[0]?.terms.length} terms (√)`)] : []),
    ...(scored ? [label(width - (SHARE + AIR) * type, top - 6 * type, "score", "label end")] : []),
    label(width, top - 6 * type, "weight", "label end"),
    ...rows.map((row, i) => attendedRow(row, i, tokenAt(row.position), top + i * pitch, sizes)),
    ...(other.count ? [label(NO * type, foot - pitch / 2 + 3.6 * type, `the other ${thousands(other.count)}`),
      ...weightBar(other.weight, foot - pitch, sizes, "rest")] : []),
    ...(scored ? curve(rows, whole, { top: foot + 14 * type, width, type }) : []));
}

/** @typedef {{strip: number, bar: number, wide: number, long: number, width: number, pitch: number, type: number, largest: number}} Sizes */

/** @param {Attended} row @param {number} i @param {string} name @param {number} y @param {Sizes} sizes @returns {Mark} */
function attendedRow({ position, weight, score, terms }, i, name, y, sizes) {
  const { pitch, type } = sizes;
  const base = y + pitch / 2 + 3.6 * type;
  return group("row", mark("title", {}, `position ${thousands(position)}, ${name}: ${score === null ? "" : `score ${scoreText(score, 3)}, `}weight ${percent(weight)}`),
    box({ x: 0, y, width: sizes.width, height: pitch }, "hit"),
    label(0, base, String(i + 1), "figure"), label(NO * type, base, clip(name, Math.floor((TOKEN - 4) / CHARACTER)), "name"),
    ...(sizes.wide && terms.length ? [path(`M${sizes.strip} ${y + pitch / 2}h${sizes.wide - 4}`, "axis"), path(termBars(terms, y + pitch / 2, sizes), "measured terms")] : []),
    ...(score === null ? [] : [label(sizes.width - (SHARE + AIR) * type, base, scoreText(score), "figure end")]),
    ...weightBar(weight, y, sizes, "measured"));
}

/** @param {number} weight @param {number} y @param {Sizes} sizes @param {string} kind @returns {Mark[]} */
const weightBar = (weight, y, { bar, long, width, pitch, type }, kind) => [
  ...(long ? [box({ x: bar, y: y + pitch * 0.2, width: round(weight * long), height: pitch * 0.6 }, `${kind} bar`)] : []),
  label(width, y + pitch / 2 + 3.6 * type, percent(weight), "figure end")];

/** @param {Float32Array} terms @param {number} middle y of 0 @param {Sizes} sizes @returns {string} a bar for each, up where it is positive */
function termBars(terms, middle, { strip, wide, pitch, largest }) {
  const step = (wide - 4) / terms.length;
  return [...terms].map((term, i) => (term ? `M${round(strip + i * step)} ${middle}v${round(-Math.sign(term) * Math.sqrt(Math.abs(term) / largest) * (pitch / 2 - 1))}h${round(step * 0.8)}V${middle}z` : "")).join("");
}

/**
 * @param {Attended[]} rows @param {number} whole @param {{top: number} & Room} room
 * @returns {Mark[]} softmax, as it was here: the weight by the score
 */
function curve(rows, whole, { top, width, type }) {
  const read = rows.filter(({ score }) => score !== null && Number.isFinite(score));
  const scores = read.map(({ score }) => /** @type {number} */ (score));
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  const pad = Math.max((high - low) * 0.06, 0.25);
  const [left, right, foot] = [40 * type, width - 14 * type, top + (CURVE - 18) * type];
  const tall = foot - top - 8 * type;
  const largest = Math.max(...read.map(({ weight }) => weight));
  const x = (/** @type {number} */ score) => round(left + ((score - low + pad) / (high - low + 2 * pad)) * (right - left));
  const y = (/** @type {number} */ weight) => round(foot - (weight / largest) * tall);
  const line = Array.from({ length: 61 }, (_, i) => {
    const score = low - pad + (i / 60) * (high - low + pad);
    return `${x(score)} ${y(Math.exp(score - whole))}`;
  });
  let last = Infinity;
  return [path(`M${left} ${foot}H${right}`, "axis"), path(`M${line.join("L")}`, "curve"),
    label(0, top + 4 * type, percent(largest), "figure"), label(0, foot + 4 * type, "0", "figure"),
    label(x(low), foot + 15 * type, withSign(low), "figure middle"), ...(x(high) - x(low) > 60 * type ? [label(x(high), foot + 15 * type, withSign(high), "figure middle")] : []),
    label((left + right) / 2, foot + 15 * type, "softmax: score → weight", "label middle"),
    ...read.flatMap(({ weight, score }, i) => {
      const at = x(/** @type {number} */ (score));
      const hasRoom = last - at > 9 * type;
      if (hasRoom) last = at;
      return [path(`M${at} ${foot}V${y(weight)}`, "axis"), mark("circle", { class: "measured point", cx: at, cy: y(weight), r: 3 * type }),
        ...(hasRoom ? [label(at, y(weight) - 6 * type, String(rows.indexOf(/** @type {Attended} */ (read[i])) + 1), "figure middle")] : [])];
    })];
}
