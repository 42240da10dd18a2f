/**
 * What one step of a program writes and launches, for some tokens of one text: what compute/backends/gpu/launches.py and
 * run.py do for a batch, whose tests compare both. Knows the recorded program (compute/backends/gpu/pages.py), and no device.
 */

/** @import { Launch } from "./recording.js" */

/**
 * @typedef {[pipeline: number, group: number, x: number, per_row: number, y: number, extra: number, items: number, late: boolean,
 *   z: string, few: [number, number], when: string]} Dispatch
 * @typedef {{dispatches: Dispatch[], fields: string[], tiles: number[], rotations: unknown[][], rows: number, blocks: number, block: number,
 *   chunk: number, split_rows: number, window: number, has_states: boolean}} Program
 * @typedef {(rotation: number, first: number, rows: number) => Float32Array} Angles cosines and sines of each pair, row by row
 */

const NONE = 0xffffffff;

/** @param {number} a @param {number} b */
const divideUp = (a, b) => Math.ceil(a / b);

/** @param {Program} program @param {number} rows @param {number} first position @returns {Generator<Launch>} */
export function* launches({ dispatches, split_rows, chunk, has_states }, rows, first) {
  const chunks = chunkCount(chunk, rows, first);
  const attention = rows > split_rows ? "tiled" : chunks > 1 ? "split" : "joined";
  for (const [op, [pipeline, group, x, perRow, y, extra, items, late, z, [minimum, maximum], when]] of dispatches.entries()) {
    const count = (late ? 1 : rows) * items;
    if (when && when !== attention && !(when === "stored" && has_states)) continue;
    if (count < minimum || count > maximum) continue;
    yield [pipeline, group, op, x, y || divideUp(count, perRow) + extra, z === "chunks" ? chunks : 1];
  }
}

/** @param {number} chunk @param {number} rows @param {number} first */
const chunkCount = (chunk, rows, first) => Math.floor((first + rows - 1) / chunk) + 1;

/**
 * @param {Program} program @param {number[]} tokens of the text from position `first` on @param {number} first @param {Angles} angles
 * @returns {{step: Uint32Array<ArrayBuffer>, lists: Int32Array<ArrayBuffer>}} the numbers of the step, and its lists, one after the other
 */
export function stepNumbers(program, tokens, first, angles) {
  const lists = listsOf(program, tokens, first, angles), starts = /** @type {Record<string, number>} */ ({});
  let words = 0;
  for (const [name, list] of Object.entries(lists)) {
    starts[name] = words;
    words += list.length;
  }
  const all = new Int32Array(words);
  for (const [name, list] of Object.entries(lists)) all.set(list, starts[name]);
  const numbers = /** @type {Record<string, number>} */ ({
    ...starts, hidden_from: NONE, zero: 0, rows: tokens.length, logits: 1, table_width: program.blocks,
    chunks: chunkCount(program.chunk, tokens.length, first), sequences: 1, stored_count: (lists["stored"]?.length ?? 0) / 2,
  });
  return { step: Uint32Array.from(program.fields, (name) => numbers[name] ?? 0), lists: all };
}

/**
 * @param {Program} program @param {number[]} tokens @param {number} first @param {Angles} angles
 * @returns {Record<string, ArrayLike<number>>} by name, in order. Blocks have their own numbers as places; a text has one state.
 */
function listsOf(program, tokens, first, angles) {
  const rows = tokens.length, last = first + rows - 1, { blocks, block, window, has_states: hasStates } = program;
  const zeros = new Int32Array(rows), positions = zeros.map((_, row) => first + row);
  const firstSeen = Math.max(0, Math.floor((first - window + 1) / block)), lastSeen = Math.floor(last / block);
  const numbered = Array.from({ length: blocks }, (_, i) => i);
  return {
    tokens, positions, types: zeros, sequence: zeros, limits: positions, window_ends: positions, logit_rows: [rows - 1], tables: numbered,
    window_tables: window ? numbered.map((i) => (i >= firstSeen && i <= lastSeen ? i : 0)) : [],
    segment: zeros, segments: [0, rows, hasStates && first ? 0 : -1], stored: hasStates ? [rows - 1, 0] : [], hidden_from: [],
    angles: program.rotations.flatMap((_, i) => [...new Int32Array(angles(i, first, rows).buffer)]),
    tiles: tilesOf(program.tiles, rows),
  };
}

/** @param {number[]} sizes the most rows of a tile, for each list @param {number} rows @returns {number[]} where each list begins, then the lists */
function tilesOf(sizes, rows) {
  /** @type {number[]} */
  const starts = [], words = [];
  for (const size of sizes) {
    starts.push(sizes.length + words.length);
    for (let done = 0; size > 1 && done < rows; done += size) words.push(done, Math.min(size, rows - done));
  }
  return [...starts, ...words];
}
