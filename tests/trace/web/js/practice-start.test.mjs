// js/practice-start.js: what the server is told of a step. What is right is Python's, and tested there.

import assert from "node:assert/strict";
import { test } from "node:test";
import { sign, startOf, summary } from "../../../../src/cutaway/trace/web/js/lessons/practice-start.js";
import { step, traceOf } from "./lessons.mjs";

const other = { id: 4, logit: -2, rank: 2 };

test("a step's start has all its candidates, the run's luck and where it comes from", () => {
  const trace = traceOf([step(3), step(5, { others: [other], own: 4, log_sum_exp: 2.5 })]);
  assert.deepEqual(startOf(trace, 1), {
    text: "Once t3 ", token_ids: [5, 4], names: ["t5 ", "t4 "], logits: [-1, -2],
    seed: "18446744073709551615", position: 3,
    run: { step: 1, log_sum_exp: 2.5, chain: "temperature 0.7 → top-k 2", own: 4, drawn: "t4 " },
  });
});

test("a step that does not exist, or has one candidate, is no start", () => {
  const trace = traceOf([step(3)]);
  assert.equal(startOf(trace, 0), null);
  assert.equal(startOf(trace, 7), null);
});

test("the chain names greedy and pure sampling", () => {
  const two = step(3, { others: [other], stages: [] });
  const chain = (params) => startOf(traceOf([two], { head: { chain: [], params } }), 0)?.run.chain;
  assert.equal(chain({ temperature: 0 }), "greedy");
  assert.equal(chain({ temperature: 1 }), "pure sampling");
});

test("a long text keeps its end, in whole characters; a prompt of ids is shown as tokens", () => {
  const two = step(3, { others: [other] });
  const long = startOf(traceOf([two], { head: { prompt: "a" + "🙂".repeat(400) } }), 0);
  assert.equal(long?.text, "🙂".repeat(300));
  assert.equal(startOf(traceOf([two], { head: { prompt: null } }), 0)?.text, "t1 t2 ");
});

test("answers are summed up", () => {
  const marks = ["right", "missed", "right at the second try", "right", null];
  assert.equal(summary(marks), "Of 5: 2 right, 1 right at the second try, 1 missed, 1 not answered.");
  assert.deepEqual(marks.map(sign), ["✓", "✗", "(✓)", "✓", "5"]);
});
