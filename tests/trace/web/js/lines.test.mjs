// figures/lines.js and drawings/map.js: the lines of the map are the texts, and join where these have common runs.

import assert from "node:assert/strict";
import { test } from "node:test";
import { joinedTracks, ownTracks, turns, widthOf, xOf } from "../../../../src/cutaway/trace/web/js/drawings/map.js";
import { SHORTEST_RUN } from "../../../../src/cutaway/trace/web/js/figures/common-runs.js";
import { diff } from "../../../../src/cutaway/trace/web/js/figures/diff.js";
import { blocksOf, linesOf } from "../../../../src/cutaway/trace/web/js/figures/lines.js";
import { opened, pair, read, run } from "./runs.mjs";

/** That the blocks are all texts, whole and in order, equal where they are joined. */
function check(texts, blocks) {
  const ends = texts.map(() => 0);
  for (const { joined, spans } of blocks) {
    spans.forEach(([from, to], i) => {
      assert.equal(from, ends[i]);
      ends[i] = to;
    });
    const words = texts.map((text, i) => text.slice(...spans[i]).join());
    if (joined) assert.equal(new Set(words).size, 1);
    if (joined && spans.some(([from]) => from > 0)) assert.ok(spans[0][1] - spans[0][0] >= SHORTEST_RUN || spans.every(([from]) => from === 0));
  }
  assert.deepEqual(ends, texts.map(({ length }) => length));
}

test("two lines join where difflib finds common runs", () => {
  const traces = ["first.jsonl", "six.jsonl"].map(opened);
  const found = diff(...traces);
  const blocks = blocksOf(traces.map(({ outputIds }) => outputIds));
  check(traces.map(({ outputIds }) => outputIds), blocks);
  assert.deepEqual(blocks.filter(({ joined }) => joined).map(({ spans: [a, b] }) => ({ a: a[0], b: b[0], length: a[1] - a[0] })),
    [{ a: 0, b: 0, length: found.common }, ...found.commonRuns]);
  assert.deepEqual(blocks.map(({ joined }) => joined), [true, false, true, false, true, false]);
  for (const { a, b, start, common_runs: wanted } of JSON.parse(read("common_runs.json"))) {
    check([a, b], blocksOf([a, b]));
    if (start || a[0] === b[0]) continue;
    const joined = blocksOf([a, b]).filter((block) => block.joined).map(({ spans: [x, y] }) => [x[0], y[0], x[1] - x[0]]);
    assert.deepEqual(joined, wanted);
  }
});

test("several lines join where all of them do", () => {
  const shared = Array.from({ length: 12 }, (_, i) => 100 + i);
  const texts = [[1, 2, 3, ...shared, 4], [1, 2, 5, 6, ...shared], [1, 2, 7, ...shared.slice(2), 8], [1, 2, 3, 9, ...shared, 4]];
  const blocks = blocksOf(texts);
  check(texts, blocks);
  assert.deepEqual(blocks.filter(({ joined }) => joined).map(({ spans }) => spans[0]), [[0, 2], [5, 15]]);
  assert.deepEqual(blocksOf([texts[0]]), [{ joined: true, spans: [[0, 16]] }]);
  assert.deepEqual(blocksOf([[1, 2], [1, 2]]), [{ joined: true, spans: [[0, 2], [0, 2]] }]);
  assert.deepEqual(blocksOf([[1], []]), [{ joined: false, spans: [[0, 1], [0, 0]] }]);
});

test("a run has its family beside it, four lines at most, or the run that it is compared with", () => {
  const [first, six] = pair();
  const more = [3, 4, 5, 6].map((id) => run(id, { trace: six.trace, parent: 1, at: 2 }));
  const other = run(9, { trace: first.trace, request: null });
  const ids = (...asked) => linesOf(...asked).map(({ id }) => id);
  assert.deepEqual(ids([first, six, other], six), [1, 2]);
  assert.deepEqual(ids([first, six, other], other), [9]);
  assert.deepEqual(ids([first, six, other], six, other), [2, 9]);
  assert.deepEqual(ids([first, six, ...more], six), [1, 2, 5, 6]);
  assert.deepEqual(ids([first, six, ...more], six, more[0]), [1, 2, 3, 6]);
  assert.deepEqual(ids([first, run(2, { parent: 1 })], first), [1]); // it has no record yet
  assert.deepEqual(ids([first], run(0, { trace: six.trace })), [0]); // the recording
});

test("each line has a strand beside its own text, and passes those of others", () => {
  const lines = (marks, kind) => marks.filter(({ attributes }) => attributes.class.startsWith(kind))
    .map(({ attributes }) => Number(attributes.class.slice(-1)));
  assert.deepEqual(lines(joinedTracks(3), "measured"), [0, 1, 2]);
  assert.deepEqual([lines(ownTracks(3, 1, false), "measured"), lines(ownTracks(3, 1, false), "rest")], [[1], [0, 2]]);
  assert.deepEqual(lines(ownTracks(3, 1, true), "rest"), [2]); // the first has ended above
  const d = turns(2, 12, true).map(({ attributes }) => attributes.d);
  assert.deepEqual(d.map((path) => path.match(/^M(\d+) 0C.* (\d+) 12$/).slice(1).map(Number)),
    [0, 1].map((line) => [xOf(line, true), xOf(line, false)]));
  assert.ok(widthOf(4) >= xOf(3, false) + 3);
});
