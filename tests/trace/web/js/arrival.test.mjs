// drawings/arrival.js and figures/rivals.js: what falls on the caret, and the ghosts, are the record's.

import assert from "node:assert/strict";
import { test } from "node:test";
import { falling, sizeOf } from "../../../../src/cutaway/trace/web/js/drawings/arrival.js";
import { answer, candidateSentence, findFavourite, question, rivals, stepSentence } from "../../../../src/cutaway/trace/web/js/figures/rivals.js";
import { opened, recording } from "./runs.mjs";

const words = (mark) => mark.children.map(({ attributes, children }) => [children[0], attributes["font-size"], attributes.class]);

test("the area of a word is its probability after the chain", () => {
  for (const trace of [recording(), opened("first.jsonl")]) {
    for (const step of trace.steps) {
      const found = words(falling(rivals(trace, step)));
      const record = step.candidates.filter(({ final_logprob: p }) => p !== null);
      const chosen = record.find(({ id }) => id === step.token_id);
      const others = record.filter((c) => c !== chosen).sort((a, b) => b.final_logprob - a.final_logprob).slice(0, 4);
      assert.deepEqual(found.map(([, , kind]) => kind), [...others.map(() => "measured"), "chosen"]);
      for (const [i, candidate] of [...others, chosen].entries()) {
        const share = candidate ? Math.exp(candidate.final_logprob) : 0;
        assert.ok(Math.abs((found[i][1] / sizeOf(1)) ** 2 - share) < 1e-3, `${found[i]} is not ${share}`);
      }
    }
  }
});

test("the likeliest rival is the lowest, and no two overlap", () => {
  const trace = recording();
  for (const step of trace.steps) {
    const rows = falling(rivals(trace, step)).children.slice(0, -1).map(({ attributes }) => attributes);
    rows.slice(1).forEach((row, i) => assert.ok(row.y <= rows[i].y - rows[i]["font-size"] + 0.011));
  }
});

test("the question and its answer are sums of the record", () => {
  const trace = recording();
  const step = trace.steps[23];
  assert.equal(question(trace, step), "choose: 0.1%. Why did it win?");
  const told = answer(trace, step);
  assert.match(told, /^Log-probability and luck: −7\.\d\d \+ 7\.21 = −0\.\d\d; make had −0\.73 \+ 0\.33 = −0\.40\. The highest sum is drawn\.$/);
  const [won, lost] = [...told.matchAll(/= (−?\d+\.\d\d)/g)].map(([, sum]) => Number(sum.replace("−", "-")));
  assert.ok(won > lost);
  const forced = { ...step, source: "forced" };
  assert.equal(answer(trace, forced), "");
});

test("a ghost is the likeliest token of a step of more than 4 bits", () => {
  const trace = recording();
  const ghosts = trace.steps.filter((step) => findFavourite(trace, step));
  assert.deepEqual(ghosts, trace.steps.filter((step) => step.rank > 1 && 2 ** -4 > Math.exp(step.logprob)));
  assert.ok(ghosts.length > 10 && ghosts.length < trace.steps.length / 2);
  const { id, name, share } = findFavourite(trace, trace.steps[23]);
  assert.deepEqual([id, name], [trace.steps[23].candidates[0].id, " make"]);
  assert.ok(Math.abs(share - 0.257) < 1e-3);
});

test("a step and a candidate in a sentence", () => {
  const trace = recording();
  const step = trace.steps[23];
  assert.equal(stepSentence(trace, step), "Step 24 of 49: choose, 0.1%, rank 104; make was likelier");
  assert.equal(stepSentence(trace, trace.steps[0]), "Step 1 of 49: the, 30.4%, rank 1");
  assert.equal(candidateSentence(trace, step, step.candidates[1]), "see, 5.8%, rank 2, 7.5% after the chain");
  const end = step.candidates.find(({ id }) => id === trace.head.end_ids[0]);
  assert.match(candidateSentence(trace, step, end), /, removed by top-p 0\.95$/);
});
