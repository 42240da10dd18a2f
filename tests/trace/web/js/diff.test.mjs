import assert from "node:assert/strict";
import { cpuUsage } from "node:process";
import { test } from "node:test";
import { diff } from "../../../../src/cutaway/trace/web/js/figures/diff.js";
import { commonRuns } from "../../../../src/cutaway/trace/web/js/figures/common-runs.js";
import { Trace } from "../../../../src/cutaway/trace/web/js/state/trace.js";
import { opened, read } from "./runs.mjs";

const [first, six] = ["first.jsonl", "six.jsonl"].map(opened);
const expected = JSON.parse(read("diff.json"));

const close = (found, wanted) =>
  assert.ok(Math.abs(found - wanted) <= 1e-12 * Math.abs(wanted), `${found} is not ${wanted}`);

test("what Python finds", () => {
  const found = diff(first, six);
  assert.equal(found.samePrompt, expected.same_prompt);
  assert.equal(found.common, expected.common);
  assert.equal(found.logitsDifferAt, expected.logits_differ_at);
  assert.deepEqual(found.commonRuns, expected.common_runs);
  assert.deepEqual(found.changes, expected.changes);
  for (const [mine, theirs] of [["a", "a"], ["b", "b"], ["aAfter", "a_after"], ["bAfter", "b_after"]]) {
    assert.equal(found[mine].tokens, expected[theirs].tokens);
    close(found[mine].bits, expected[theirs].bits);
  }
});

test("both continuations, with their probabilities in both texts", () => {
  const { divergence } = diff(first, six);
  assert.equal(divergence.index, expected.divergence.index);
  for (const side of ["a", "b"]) {
    const [mine, theirs] = [divergence[side], expected.divergence[side]];
    assert.deepEqual([mine.id, mine.token], [theirs.token_id, theirs.token]);
    for (const [x, y] of [[mine.underA, theirs.under_a], [mine.underB, theirs.under_b]]) {
      if (y === null) assert.equal(x, null);
      else close(x, y);
    }
  }
});

test("a trace and itself", () => {
  const found = diff(first, first);
  assert.deepEqual([found.changes, found.divergence, found.commonRuns, found.logitsDifferAt], [[], null, [], null]);
});

test("a text that is longer than the other, and logits that differ", () => {
  const lines = read("page/first.jsonl").split("\n");
  const cut = lines.findIndex((line) => line.includes('"kind":"step","index":5,'));
  const short = Trace.parse(lines.slice(0, cut).join("\n") + "\n");
  const found = diff(short, first);
  assert.equal(found.divergence.a, null);
  assert.equal(found.divergence.b.underA, null);
  assert.equal(found.divergence.index, 5);
  short.steps[3].logits_hash = "0000000000000000";
  assert.equal(diff(short, first).logitsDifferAt, 3);
});

test("the common runs of difflib", () => {
  let count = 0;
  for (const { a, b, start, common_runs: wanted } of JSON.parse(read("common_runs.json"))) {
    const found = commonRuns(a, b, start).map((m) => [m.a, m.b, m.length]);
    assert.deepEqual(found, wanted, JSON.stringify({ a, b, start }));
    count += found.length;
  }
  assert.ok(count > 20);
});

test("two long repetitive texts are compared within a second of the processor", () => {
  const a = Array.from({ length: 2000 }, (_, i) => i % 3);
  const b = [9, ...a, 9, ...a].slice(0, 2000);
  const begun = cpuUsage();
  assert.deepEqual(commonRuns(a, b), [{ a: 0, b: 1, length: 1999 }]);
  assert.ok(cpuUsage(begun).user < 1e6);
});

test("interventions are a setting, in words", () => {
  const made = [{ text: "L0.H1 x 0", kind: "scale" }, { text: "blind 1", kind: "blind" }];
  const [head, ...rest] = read("first.jsonl").trim().split("\n");
  const changed = head.replace('"version":1', '"version":2')  // JSON.parse would round the seed
    .replace(/}$/, `,"changes":${JSON.stringify(made)}}`);
  const other = Trace.parse([changed, ...rest, ""].join("\n"));
  assert.deepEqual(diff(first, other).changes, [{ name: "interventions", a: null, b: "L0.H1 x 0; blind 1" }]);
});
