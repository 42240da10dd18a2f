/**
 * The runs of tokens that two texts have in common: the blocks that Python's `difflib.SequenceMatcher` finds, of
 * SHORTEST_RUN tokens or more.
 *
 * That is: the longest stretch that both have (of several the first in a, of those the first in b), then the same
 * to its left and to its right. Stretches are found once, by their first SHORTEST_RUN tokens, and cut to the part
 * that is still free; there is no table of all pairs.
 */

/** The least length of a common run in tokens: any two texts on one subject share shorter ones. */
export const SHORTEST_RUN = 8;

/** @typedef {{a: number, b: number, length: number}} CommonRun equal tokens, from these steps on */

/**
 * @param {number[]} a @param {number[]} b @param {number} start where both begin
 * @returns {CommonRun[]} in the order of both
 */
export function commonRuns(a, b, start = 0) {
  return runsWithin(stretchesOf(a, b, start), start, a.length, start, b.length);
}

/**
 * @param {CommonRun[]} stretches @param {number} fromA @param {number} toA @param {number} fromB
 * @param {number} toB @returns {CommonRun[]}
 */
function runsWithin(stretches, fromA, toA, fromB, toB) {
  const free = stretches.flatMap((stretch) => {
    const cut = Math.max(0, fromA - stretch.a, fromB - stretch.b);
    const end = Math.min(stretch.length, toA - stretch.a, toB - stretch.b);
    return end - cut < SHORTEST_RUN ? [] : { a: stretch.a + cut, b: stretch.b + cut, length: end - cut };
  });
  const [first] = free;
  if (!first) return [];
  const best = free.reduce((x, y) => (isBefore(y, x) ? y : x), first);
  return [
    ...runsWithin(free, fromA, best.a, fromB, best.b),
    best,
    ...runsWithin(free, best.a + best.length, toA, best.b + best.length, toB),
  ];
}

/** @param {CommonRun} x @param {CommonRun} y @returns {boolean} whether x is taken rather than y */
const isBefore = (x, y) =>
  (y.length - x.length || x.a - y.a || x.b - y.b) < 0;

/**
 * @param {number[]} a @param {number[]} b @param {number} start
 * @returns {CommonRun[]} every stretch that can be extended at neither end, by its place in a, then in b
 */
export function stretchesOf(a, b, start) {
  const places = placesOf(b, start);
  /** @type {CommonRun[]} */
  const stretches = [];
  for (let i = start; i + SHORTEST_RUN <= a.length; i++) {
    for (const j of places.get(wordAt(a, i)) ?? []) {
      if (i > start && j > start && a[i - 1] === b[j - 1]) continue; // part of an earlier one
      let length = SHORTEST_RUN;
      while (i + length < a.length && a[i + length] === b[j + length]) length++;
      stretches.push({ a: i, b: j, length });
    }
  }
  return stretches;
}

/** @param {number[]} ids @param {number} start @returns {Map<string, number[]>} by their SHORTEST_RUN tokens */
function placesOf(ids, start) {
  /** @type {Map<string, number[]>} */
  const places = new Map();
  for (let j = start; j + SHORTEST_RUN <= ids.length; j++) {
    const word = wordAt(ids, j);
    const starts = places.get(word);
    if (starts) starts.push(j);
    else places.set(word, [j]);
  }
  return places;
}

/** @param {number[]} ids @param {number} at @returns {string} */
const wordAt = (ids, at) => ids.slice(at, at + SHORTEST_RUN).join(" ");
