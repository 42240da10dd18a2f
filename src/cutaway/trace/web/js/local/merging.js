/**
 * The loop of every BPE (src/cutaway/text/tokenizers/bpe.py): merge the best of all adjacent pairs, until none can be merged.
 *
 * Knows the order: the cheapest first, the leftmost among equals.
 */

/** @typedef {{cost: number, left: number, right: number, size: number}} Pair size: characters of both */

/**
 * @param {string[]} parts to begin with
 * @param {(left: string, right: string) => number | undefined} cost of merging two neighbours; undefined: they cannot be
 * @returns {string[]} in O(n log n)
 */
export function merge(parts, cost) {
  const texts = [...parts], end = texts.length, before = texts.map((_, i) => i - 1), after = texts.map((_, i) => i + 1);
  /** @type {Pair[]} */
  const queue = [];
  const textAt = (/** @type {number} */ i) => /** @type {string} */ (texts[i]);
  const offer = (/** @type {number} */ left, /** @type {number} */ right) => {
    const price = left < 0 || right >= end ? undefined : cost(textAt(left), textAt(right));
    if (price !== undefined) push(queue, { cost: price, left, right, size: textAt(left).length + textAt(right).length });
  };
  for (let left = 0; left + 1 < end; left++) offer(left, left + 1);
  for (let pair = pop(queue); pair; pair = pop(queue)) {
    const { left, right, size } = pair;
    // A part that was merged away is empty and one that grew is longer: the pair no longer exists.
    if (!texts[left] || !texts[right] || textAt(left).length + textAt(right).length !== size) continue;
    texts[left] = textAt(left) + textAt(right);
    texts[right] = "";
    const next = (after[left] = /** @type {number} */ (after[right]));
    if (next < end) before[next] = left;
    offer(/** @type {number} */ (before[left]), left);
    offer(left, next);
  }
  return texts.filter((part) => part);
}

/** @param {Pair} a @param {Pair} b */
const isBefore = (a, b) => a.cost < b.cost || (a.cost === b.cost && a.left < b.left);

/** @param {Pair[]} heap @param {Pair} pair */
function push(heap, pair) {
  let at = heap.length;
  for (let up; at > 0 && isBefore(pair, (up = /** @type {Pair} */ (heap[(at - 1) >> 1]))); at = (at - 1) >> 1) heap[at] = up;
  heap[at] = pair;
}

/** @param {Pair[]} heap @returns {Pair | undefined} the first, which is taken out */
function pop(heap) {
  const first = heap[0], last = heap.pop();
  if (!first || !last || !heap.length) return first;
  let at = 0;
  for (let down = 1; down < heap.length; down = 2 * at + 1) {
    const [leftChild, rightChild] = [heap[down], heap[down + 1]];
    if (rightChild && isBefore(rightChild, /** @type {Pair} */ (leftChild))) down++;
    const child = /** @type {Pair} */ (heap[down]);
    if (!isBefore(child, last)) break;
    heap[at] = child;
    at = down;
  }
  heap[at] = last;
  return first;
}
