import assert from "node:assert/strict";
import { test } from "node:test";
import { canvasOf, kendall, ruleInWords } from "../../../../src/cutaway/trace/web/js/figures/canvas.js";
import { TraceError, Trace } from "../../../../src/cutaway/trace/web/js/state/trace.js";
import { opened, read, streamed } from "./runs.mjs";

const expected = JSON.parse(read("canvas.json"));
const STATES = { revealed: "fresh", edited: "edited", "masked again": "again" };

for (const [how, trace] of [["opened", opened("canvas.jsonl")], ["streamed", streamed("canvas.jsonl")]]) {
  test(`the cells after each pass, ${how}`, () => {
    const canvas = canvasOf(trace);
    assert.deepEqual(canvas.tokens.map((now) => [...now]), expected.stands);
  });
}

test("the figures of all passes are Python's", () => {
  const { passes, rows, perPass, bound, order } = canvasOf(opened("canvas.jsonl")).totals;
  const { figures } = expected;
  assert.deepEqual([passes, rows, perPass], [figures.passes, figures.rows, figures.tokens_per_pass]);
  assert.ok(Math.abs(bound / Math.LN2 - figures.bound_bits) < 1e-9);
  assert.ok(Math.abs(order - figures.order) < 1e-12);
});

test("each cell's history is Python's", () => {
  const canvas = canvasOf(opened("canvas.jsonl"));
  let again = 0;
  expected.lives.forEach((life, cell) => {
    const found = canvas.history(cell);
    assert.deepEqual(found.map(({ pass }) => pass.index), life.map(([index]) => index));
    found.forEach(({ place, of, state, seen }, i) => {
      const [, wanted, event, masked] = life[i];
      assert.equal(place || null, wanted);
      if (seen) assert.equal(of, masked);
      if (event) assert.equal(state, STATES[event]);
      again += event === "masked again";
    });
  });
  assert.ok(again);
});

test("later passes are added", () => {
  const lines = read("canvas.jsonl").trimEnd().split("\n");
  const trace = new Trace();
  let seen = 0;
  for (const line of lines) {
    trace.takeLine(line, 1);
    const canvas = canvasOf(trace);
    assert.equal(canvas.tokens.length, trace.passes.length);
    seen = Math.max(seen, canvas.tokens.length);
  }
  assert.equal(seen, expected.stands.length);
});

test("a missing pass is an error, and a text has no canvas", () => {
  const lines = read("canvas.jsonl").split("\n");
  const second = lines.findIndex((line) => line.startsWith('{"kind":"pass","index":1,'));
  assert.throws(() => Trace.parse(lines.toSpliced(second, 1).join("\n")), TraceError);
  assert.equal(canvasOf(opened("first.jsonl")), null);
});

test("the correlation of an order with left to right", () => {
  assert.equal(kendall([0, 1, 2, 3]), 1);
  assert.equal(kendall([3, 2, 1]), -1);
  assert.equal(kendall([5, 5]), null);
  assert.equal(kendall([]), null);
});

test("a rule in words", () => {
  assert.equal(ruleInWords({}), "one cell per pass, the most confident first");
  assert.equal(ruleInWords({ steps: 4, draws_first: true, forced_cells: [[0, 1, 2]] }), "steps 4, draws first, 1 forced");
});

test("a canvas of noise shows what the next pass reads, and chooses among all cells", () => {
  const lines = read("noise.jsonl").trimEnd().split("\n").map((line) => JSON.parse(line));
  const passes = lines.filter(({ kind }) => kind === "pass");
  const canvas = canvasOf(opened("noise.jsonl"));
  assert.ok(canvas.isNoise && canvas.choosesAnew);
  let noise = 0;
  passes.slice(1).forEach(({ cells }, at) => cells.position.forEach((position, i) => {
    const { state, token } = canvas.cellAfter(at, position - canvas.first);
    assert.equal(token, cells.read[i]);
    noise += Number(state === "masked" || state === "again");
  }));
  assert.ok(noise);
  assert.equal(canvas.order(0).length, passes[0].cells.position.length);
  assert.ok(passes.at(-1).cells.now.every((token) => token !== null));
});

test("the largest entropy is found in a canvas of any size", () => {
  const trace = opened("canvas.jsonl");
  const pass = trace.passes[0];
  const cells = Array.from({ length: 300_000 }, (_, at) => ({ ...pass.cells[0], entropy: at === 7 ? 9 : 1 }));
  const canvas = canvasOf(trace);
  assert.equal(canvas.largestEntropy, Math.max(...trace.passes.flatMap((each) => each.cells.map((cell) => cell.entropy))));
  trace.passes.push({ ...pass, cells });
  assert.equal(canvasOf(trace).largestEntropy, 9);
});
