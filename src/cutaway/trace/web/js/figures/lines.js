/**
 * The lines of the text as a map: which runs are drawn beside each other, and where their texts are one. Knows runs and
 * common-runs.js. Knows no document.
 */

import { SHORTEST_RUN, commonRuns } from "./common-runs.js";
import { family, lineage } from "./branches.js";
/** @import { Run } from "../state/store.js" */

/** A piece of the texts: from and to by line. Joined: the same tokens in all of them. @typedef {{joined: boolean, spans: [number, number][]}} Block */

/** Equal tokens: where they begin by line. @typedef {{at: number[], length: number}} Stretch */

const LIMIT = 4;

/**
 * @param {Run[]} runs @param {Run} run the selected one
 * @param {Run | null} other that it is compared with; one of another family has a map with the run alone
 * @returns {Run[]} the oldest first; of a large family the run, its ancestors and the latest
 */
export function linesOf(runs, run, other = null) {
  const relatives = runs.includes(run) ? family(runs, run) : [run];
  const all = !other || other === run || relatives.includes(other) ? relatives : [run, other];
  const candidates = all.filter(({ trace }) => trace.known && !trace.known.decoder);
  const first = [run, ...(other ? [other] : []), ...lineage(runs, run).toReversed(), ...candidates.toReversed()];
  const lines = [...new Set(first)].filter((candidate) => candidates.includes(candidate)).slice(0, LIMIT);
  return lines.length > 1 ? lines.sort((a, b) => a.id - b.id) : [run];
}

/** @param {number[][]} texts the tokens of each line @returns {Block[]} all texts, cut where they part and where they join */
export function blocksOf(texts) {
  /** @type {Block[]} */
  const blocks = [];
  let ends = texts.map(() => 0);
  /** @param {boolean} isJoined @param {number[]} to */
  const cut = (isJoined, to) => {
    /** @type {[number, number][]} */
    const spans = ends.map((from, i) => [from, to[i] ?? from]);
    ends = to;
    if (spans.some(([from, end]) => from < end)) blocks.push({ joined: isJoined, spans });
  };
  for (const { at, length } of joinedStretches(texts)) {
    cut(false, at);
    cut(true, at.map((from) => from + length));
  }
  cut(false, texts.map(({ length }) => length));
  return blocks;
}

/** @param {number[][]} texts @returns {Stretch[]} that all texts have, in the order of all */
function joinedStretches([base = [], ...rest]) {
  /** @type {Stretch[]} */
  const whole = [{ at: [0], length: base.length }];
  return rest.reduce((stretches, text) => stretches.flatMap((stretch) => intersect(stretch, stretchesWith(base, text))), whole);
}

/** @param {Stretch} stretch @param {Stretch[]} stretches of the base and one more text @returns {Stretch[]} */
function intersect({ at, length }, stretches) {
  const [start = 0] = at;
  return stretches.flatMap(({ at: [a = 0, b = 0], length: long }) => {
    const from = Math.max(start, a);
    const size = Math.min(start + length, a + long) - from;
    if (size < 1 || (size < SHORTEST_RUN && from > 0)) return [];
    return { at: [...at.map((place) => place + from - start), b + from - a], length: size };
  });
}

/** @param {number[]} a @param {number[]} b @returns {Stretch[]} their common beginning, and the common runs after it */
function stretchesWith(a, b) {
  const differs = a.findIndex((id, i) => id !== b[i]);
  const common = differs < 0 ? a.length : differs;
  return [{ at: [0, 0], length: common }, ...commonRuns(a, b, common).map((run) => ({ at: [run.a, run.b], length: run.length }))]
    .filter(({ length }) => length);
}
