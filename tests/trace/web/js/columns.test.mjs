// js/columns.js: every step is in one column, and the largest of each is seen.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  bars, columnsOf, middleOf, nearlyAll, peaks, roundUp, spanOf, stepAt,
} from "../../../../src/cutaway/trace/web/js/figures/columns.js";

/** Numbers that look random and are the same each time. */
function* numbers(seed = 1) {
  for (let state = seed; ; ) yield (state = (state * 48271) % 2147483647);
}

const fit = (count, width) => ({ first: 0, step: width / count, width, count });

test("a run that fits has each of its steps in one column, in order", () => {
  const some = numbers();
  for (let i = 0; i < 300; i++) {
    const sight = fit(1 + (some.next().value % 6000), 1 + (some.next().value % 1500));
    const { edges, left, wide } = columnsOf(sight);
    assert.equal(edges[0], 0);
    assert.equal(edges.at(-1), sight.count);
    assert.ok(edges.every((edge, at) => at === 0 || edge >= edges[at - 1]));
    assert.equal(left, 0);
    assert.ok((edges.length - 1) * wide < sight.width + 1, JSON.stringify(sight));
  }
});

test("a column holds the steps that lie on its pixels", () => {
  const some = numbers(5);
  for (let i = 0; i < 300; i++) {
    const sight = fit(2 + (some.next().value % 6000), 1 + (some.next().value % 1500));
    const { edges, wide } = columnsOf(sight);
    for (let column = 0; column + 1 < edges.length; column++) {
      for (let step = edges[column]; step < edges[column + 1]; step++) {
        const from = step * sight.step;
        assert.ok(from > column * wide - 1e-6 && from < (column + 1) * wide + 1e-6);
      }
    }
  }
});

test("zoomed in, only visible steps have a column, and half a step is cut at the edge", () => {
  const { edges, left, wide } = columnsOf({ first: 10.5, step: 8, width: 32, count: 5000 });
  assert.deepEqual([...edges], [10, 11, 12, 13, 14, 15]);
  assert.deepEqual([left, wide], [-4, 8]);
  assert.deepEqual([...columnsOf({ first: 3, step: 8, width: 800, count: 5 }).edges], [3, 4, 5]);
  assert.deepEqual([...columnsOf({ first: 9, step: 8, width: 800, count: 5 }).edges], [9]);
});

test("a peak is the first of the largest of its column", () => {
  const some = numbers(9);
  const values = Array.from({ length: 997 }, () => some.next().value % 50);
  const { edges } = columnsOf(fit(values.length, 70));
  const shown = peaks((i) => values[i], edges);
  assert.equal(shown.length, edges.length - 1);
  shown.forEach((step, column) => {
    const inside = values.slice(edges[column], edges[column + 1]);
    assert.equal(step, edges[column] + inside.indexOf(Math.max(...inside)));
  });
});

test("a column without a value has no step, and no bar", () => {
  const shown = peaks((i) => (i === 3 ? 1 : -Infinity), Int32Array.of(0, 2, 4, 4));
  assert.deepEqual([...shown], [-1, 3, -1]);
  const paths = bars({ edges: Int32Array.of(0, 2, 4, 4), left: 0, wide: 1 }, shown, () => "a", () => 5, 20);
  assert.deepEqual([...paths], [["a", "M1 20v-5h1v5z"]]);
});

test("bars are one path per bucket, on whole pixels, with gaps where there is room", () => {
  const columns = { edges: Int32Array.of(0, 1, 2, 3), left: -4, wide: 8 };
  const shown = Int32Array.of(0, 1, 2);
  const bucket = (/** @type {number} */ step) => (step === 2 ? null : "xy"[step % 2]);
  assert.deepEqual([...bars(columns, shown, bucket, (step) => step + 0.25, 10, () => 2)],
    [["x", "M-4 8v-0.3h7v0.3z"], ["y", "M4 8v-1.3h7v1.3z"]]);
});

test("bars of any width touch and never overlap", () => {
  for (const wide of [1, 1.28, 1.5, 2.2, 2.9]) {
    const edges = Int32Array.from({ length: 101 }, (_, i) => i);
    const [[, path]] = bars({ edges, left: 0, wide }, edges.slice(0, 100), () => 0, () => 1, 1);
    const found = [...path.matchAll(/M(\d+) 1v-1h(\d+)/g)].map(([, x, across]) => [+x, +across]);
    assert.equal(found.length, 100);
    found.slice(1).forEach(([x], i) => assert.equal(x, found[i][0] + found[i][1]));
  }
});

test("a step's middle belongs to that step", () => {
  const some = numbers(3);
  for (let i = 0; i < 300; i++) {
    const sight = { ...fit(1 + (some.next().value % 6000), 900), first: some.next().value % 3 };
    const step = sight.first + (some.next().value % sight.count);
    assert.equal(stepAt(sight, middleOf(sight, step)), Math.min(step, sight.count - 1));
  }
  assert.equal(stepAt(fit(10, 100), -5), 0);
  assert.equal(stepAt(fit(10, 100), 999), 9);
});

test("a live run's scale changes when it is full, and not before", () => {
  assert.deepEqual([0, 1, 64, 65, 128, 129, 5000].map((n) => spanOf(n, true)), [64, 64, 64, 128, 128, 256, 8192]);
  assert.deepEqual([0, 1, 65].map((n) => spanOf(n, false)), [1, 1, 65]);
});

test("a scale ends at a round number that is large enough", () => {
  const round = [[0, 1], [NaN, 1], [1, 1], [1.01, 2], [3, 5], [5, 5], [7, 10], [0.03, 0.05], [1234, 2000]];
  for (const [value, top] of round) assert.ok(Math.abs(roundUp(value) - top) < 1e-12 * top, `${value}`);
});

test("outliers do not set the scale", () => {
  assert.equal(nearlyAll([...Array(99).fill(4), 900]), 4);
  assert.equal(nearlyAll([7]), 7);
  assert.equal(nearlyAll([]), 0);
});
