// figures/time.js and drawings/time.js: the blocks are the record's milliseconds and tokens, to scale.

import assert from "node:assert/strict";
import { test } from "node:test";
import { staircase, timeBar } from "../../../../src/cutaway/trace/web/js/drawings/time.js";
import { partsOf, timeSentence, timesOf } from "../../../../src/cutaway/trace/web/js/figures/time.js";
import { opened } from "./runs.mjs";

const trace = opened("first.jsonl");
const SIZE = { width: 160, height: 20 };
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const msOf = ({ ms }) => sum(Object.values(ms));

test("every step's time is in the whole, and the model's share is the sum of what it took", () => {
  const times = timesOf(trace);
  assert.equal(times.at.length, trace.steps.length);
  assert.ok(Math.abs(times.ms - sum(trace.steps.map(msOf))) < 1e-6);
  assert.ok(Math.abs(times.model - sum(trace.steps.map(({ ms }) => ms.run))) < 1e-6);
  assert.match(timeSentence(times, false), new RegExp(`^${(100 * times.model / times.ms).toFixed(1)}% of the time is the model`));
  assert.equal(timesOf(trace), times); // computed once
});

test("the bar is to scale", () => {
  const [step] = trace.steps;
  const { children } = timeBar(partsOf(step), SIZE);
  assert.ok(Math.abs(sum(children.map(({ attributes }) => attributes.width)) - SIZE.width) < 1e-6);
  const model = children.find(({ attributes }) => attributes.class === "measured");
  assert.ok(Math.abs(model.attributes.width / SIZE.width - step.ms.run / msOf(step)) < 1e-9);
});

test("the stairs climb with the tokens that were read, and the selected step is as wide as its time", () => {
  const times = timesOf(trace);
  const most = Math.max(...trace.steps.map(({ kv_tokens: tokens }) => tokens));
  trace.steps.forEach((step, i) => {
    const here = staircase(times, i, SIZE).children.find(({ attributes }) => attributes.class === "chosen").attributes;
    assert.ok(Math.abs(here.height - SIZE.height * step.kv_tokens / most) < 0.02);
    assert.ok(Math.abs(here.width - Math.max(SIZE.width * msOf(step) / times.ms, 1.5)) < 0.02);
  });
});

test("tokens of one step of the engine have one block, and a canvas a block for each pass", () => {
  const [step] = trace.steps;
  const other = { head: trace.head, passes: [], steps: [step, { ...step, index: 1, source: "draft" }, { ...step, index: 2, ms: { ...step.ms, run: 9 } }] };
  const times = timesOf(other);
  assert.deepEqual(times.at, [0, 0, 1]);
  assert.equal(times.blocks.length, 2);
  const canvas = opened("canvas.jsonl");
  assert.equal(timesOf(canvas).blocks.length, canvas.passes.length);
});

test("of a record without times nothing is said", () => {
  const still = { head: trace.head, passes: [], steps: trace.steps.map((step) => ({ ...step, ms: { schedule: 0, run: 0, sample: 0 } })) };
  assert.equal(timeSentence(timesOf(still), false), "");
  assert.deepEqual(partsOf(still.steps[0]), []);
});

test("thousands of steps are one path of as many pixels", () => {
  const blocks = Array.from({ length: 20000 }, (_, i) => ({ ms: 10, model: 9, tokens: i + 1 }));
  const [path] = staircase({ blocks, at: [], ms: 200000, model: 180000 }, 5, SIZE).children;
  assert.ok(path.attributes.d.length < 8000);
});
