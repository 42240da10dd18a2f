import assert from "node:assert/strict";
import { test } from "node:test";
import { branches, family, forkOf, inherits, lineage, meanBits, parentOf, scaleEnd, titleOf }
  from "../../../../src/cutaway/trace/web/js/figures/branches.js";
import { clip } from "../../../../src/cutaway/trace/web/js/figures/numbers.js";
import { opened, pair, request, run } from "./runs.mjs";

const root = run(1);
const early = run(2, { parent: 1, at: 3, name: " mat at 3" });
const late = run(3, { parent: 1, at: 9, name: "\n at 9" });
const deep = run(4, { parent: 2, at: 5, name: "sofa at 5" });
const file = run(5, { request: null, name: "old.jsonl" });
const runs = [root, early, late, deep, file];

test("titles of runs", () => {
  assert.deepEqual(runs.map((one) => titleOf(runs, one)), [
    "One, two,", "One, two, · fork: mat at 3", "One, two, · fork: \\n at 9", "One, two, · fork: sofa at 5",
    "old.jsonl",
  ]);
  const asked = run(6, { request: { ...request(""), kind: "chat", messages: [
    { role: "user", content: "Why?" }, { role: "assistant", content: "So." }] } });
  assert.equal(titleOf([asked], asked), "Why?");
  assert.equal(titleOf([], run(7, { request: request([]) })), "run 7");
  assert.equal(forkOf(run(8, { name: "  at 2" })), "fork: ␣ at 2");
});

test("the title of an opened fork has its file's name and its token", () => {
  const first = run(1, { request: null, name: "first.jsonl", trace: opened("page/first.jsonl") });
  const six = run(2, { request: null, name: "six.jsonl", trace: opened("page/six.jsonl"), parent: 1, at: 2 });
  assert.equal(titleOf([first, six], six), "six.jsonl · fork: six at 3");
});

test("lineages and families", () => {
  assert.deepEqual(lineage(runs, deep), [root, early, deep]);
  assert.deepEqual(family(runs, late), [root, early, late, deep]);
  assert.deepEqual(family(runs, file), [file]);
});

test("an address cannot make a circle", () => {
  const [x, y, z] = [run(1, { parent: 2 }), run(2, { parent: 1 }), run(3, { parent: 3 })];
  assert.deepEqual([x, y, z].map((one) => parentOf([x, y, z], one)?.id), [undefined, 1, undefined]);
  assert.equal(branches([x, y, z]).length, 3);
});

test("the later fork is above, so that no lines cross", () => {
  const placed = branches(runs);
  assert.deepEqual(placed.map((b) => [b.run.id, b.lane, b.above, b.from]), [
    [1, 0, null, 0], [3, 1, 0, 9], [2, 2, 0, 3], [4, 3, 2, 5], [5, 4, null, 0],
  ]);
  for (const { above, lane, from } of placed) {
    const between = placed.filter((other) => above !== null && other.lane > above && other.lane < lane);
    assert.ok(between.every((other) => other.from >= from));
  }
});

test("a scale has room, and does not change at every token", () => {
  const ends = Array.from({ length: 3000 }, (_, steps) => scaleEnd(steps));
  assert.ok(ends.every((end, steps) => end >= steps && end <= Math.max(10, steps * 2)));
  assert.ok(new Set(ends).size < 40);
});

test("mean surprise, and clipped texts", () => {
  const [first] = pair();
  const bits = first.trace.steps.map((step) => -step.logprob / Math.LN2);
  assert.ok(Math.abs(meanBits(first) - bits.reduce((a, b) => a + b) / bits.length) < 1e-9);
  assert.equal(meanBits(root), null);
  assert.deepEqual([clip("😀😀😀", 2), clip("ab", 2)], ["😀…", "ab"]);
});

test("a branch changes one token, and repeats those before it", () => {
  const [typed, fork, again] = [run(1, { request: request("a", [5, 6]) }),
    run(2, { parent: 1, at: 4, request: request("a", [5, 6, 7, 8, 9]) }),
    run(3, { parent: 2, at: 6, request: request("a", [5, 6, 7, 8, 9, 1, 2]) })];
  const changed = (one) => [0, 1, 2, 3, 4, 5, 6, 7].filter((step) => !inherits([typed, fork, again], one, step));
  assert.deepEqual([typed, fork, again].map(changed),
    [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 4, 5, 6, 7], [0, 1, 4, 6, 7]]);
  const alone = run(4, { request: null, trace: opened("page/six.jsonl") });
  assert.deepEqual([0, 1, 2, 3].map((step) => inherits([alone], alone, step)), [true, true, false, false]);
});
