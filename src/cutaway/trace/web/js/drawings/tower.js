/**
 * The logit lens as a tower: a row for each layer, the first at the bottom. A row has the likeliest token after the layer,
 * on a colour as opaque as its probability, framed where it is the step's token; and the rank of the step's token as a
 * point of a line, on a logarithmic axis that begins at the tower.
 */

import { heat } from "../figures/catalogue.js";
import { clip, percent, thousands } from "../figures/numbers.js";
import { box, group, label, mark, path, picture, round } from "./marks.js";
/** @import { Mark } from "./marks.js" */

/**
 * name, probability  of the likeliest token; isStepToken: whether it is the step's token; rank: of the step's token
 * draws              what the same luck would draw here; null: that cannot be repeated; same: whether that is the step's token
 * @typedef {{layer: number, after: string, name: string, probability: number, isStepToken: boolean, rank: number, draws: string | null, same: boolean}} TowerRow
 * width: pixels of the drawing; pitch: of a row; type: how much larger than usual the type is
 * @typedef {{width: number, pitch: number, type: number}} Room
 */

/** Pixels above the first row, for headings, in type of the usual size. */
export const HEAD = 18;
/** Pixels of the narrowest drawing; in a narrower place it is scaled down. */
export const LEAST = 260;
const CHARACTER = 6.4; // pixels of a character of a token
const COLUMNS = { layer: 38, p: 44, luck: 14, rank: 44 }; // pixels, in type of the usual size; the rest is shared

/** @param {number} rows @param {number} type @returns {number} pixels of a row: 31 of them fit on the first screen */
export const pitchOf = (rows, type) => Math.max(10 * type, Math.min(20 * type, 310 / rows));

/**
 * @param {TowerRow[]} rows the lowest first @param {string} token the step's @param {Room} room @param {string} sentence
 * @returns {Mark}
 */
export function tower(rows, token, { width: room, pitch, type }, sentence) {
  const width = Math.max(room, LEAST * type);
  const top = HEAD * type;
  const rest = width - (COLUMNS.layer + COLUMNS.p + COLUMNS.luck + COLUMNS.rank) * type;
  const cell = { x: COLUMNS.layer * type, width: Math.round(rest * 0.45) };
  const axis = { from: cell.x + cell.width + (COLUMNS.p + COLUMNS.luck) * type, to: width - COLUMNS.rank * type };
  const tens = Math.max(1, Math.ceil(Math.log10(Math.max(...rows.map(({ rank }) => rank), 2))));
  const x = (/** @type {number} */ rank) => round(axis.from + (Math.log10(Math.max(rank, 1)) / tens) * (axis.to - axis.from));
  const y = (/** @type {number} */ i) => top + (rows.length - 1 - i) * pitch;
  const points = rows.map(({ rank }, i) => [x(rank), y(i) + pitch / 2]);
  const foot = top + rows.length * pitch;
  const grid = Array.from({ length: tens + 1 }, (_, ten) => path(`M${x(10 ** ten)} ${top}V${foot}`, "axis"));
  return picture({ width, height: foot }, sentence,
    label(0, top - 6 * type, "layer"), label(cell.x, top - 6 * type, "likeliest token"),
    label(cell.x + cell.width + (COLUMNS.p - 4) * type, top - 6 * type, "p", "label end"),
    label(axis.from, top - 6 * type, `rank of ${clip(token, 14)}`),
    ...rows.map((row, i) => box({ x: 0, y: y(i), width, height: pitch }, "hit", describeRow(row))), ...grid,
    path(`M${points.map((point) => point.join(" ")).join("L")}`, "rank"),
    ...rows.map((row, i) => layerRow(row, { cell, y: y(i), x: x(row.rank), pitch, type })));
}

/**
 * @param {TowerRow} row @param {Omit<Room, "width"> & {cell: {x: number, width: number}, y: number, x: number}} room x: of its rank
 * @returns {Mark}
 */
function layerRow(row, { cell, y, x, pitch, type }) {
  const { layer, name, probability, isStepToken, rank, same } = row;
  const base = y + pitch / 2 + 3.6 * type;
  const middle = y + pitch / 2;
  const right = cell.x + cell.width;
  return group(`row${isStepToken ? " ours" : ""}`,
    mark("title", {}, describeRow(row)),
    label(0, base, layer < 0 ? "before" : `L${layer}`),
    mark("rect", { class: `measured cell${isStepToken ? " chosen" : ""}`, x: cell.x, y: y + 0.5, width: cell.width, height: pitch - 1, fill: heat(probability) }),
    label(cell.x + 4, base, clip(name, Math.floor((cell.width - 8) / (CHARACTER * type))), "name"),
    label(right + (COLUMNS.p - 4) * type, base, percent(probability), "figure end"),
    ...(same ? [mark("circle", { class: "chosen luck", cx: right + (COLUMNS.p + 4) * type, cy: middle, r: 2.5 * type })] : []),
    mark("circle", { class: `point${rank === 1 ? " chosen" : ""}`, cx: x, cy: middle, r: (rank === 1 ? 3 : 2) * type }),
    label(x + 6 * type, base, thousands(rank), "figure"));
}

/** @param {TowerRow} row @returns {string} */
const describeRow = ({ after, name, probability, rank, draws, same }) =>
  `${after ? `after ${after}` : "before the first layer"}: ${name}, ${percent(probability)}; the step's token has rank ${thousands(rank)}`
  + (draws === null ? "" : same ? "; the same luck draws it" : `; the same luck draws ${draws}`);
