// figures/endings.js and figures/constraint.js: data/sentences.json has the sentences of trace/endings.py and
// trace/endings.py.

import assert from "node:assert/strict";
import { test } from "node:test";
import { endMoment, momentSentence, whySentence } from "../../../../src/cutaway/trace/web/js/figures/endings.js";
import { constraintSentences, wantedSentence } from "../../../../src/cutaway/trace/web/js/figures/constraint.js";
import { visible } from "../../../../src/cutaway/trace/web/js/figures/numbers.js";
import { opened, read } from "./runs.mjs";

const { ends, held, ...cases } = JSON.parse(read("sentences.json"));

test("every step and every end in Python's sentences", () => {
  let count = 0;
  for (const [name, { why, moments }] of Object.entries(cases)) {
    const trace = opened(name);
    assert.equal(whySentence(trace), why);
    const found = trace.steps.flatMap((step) => endMoment(trace, step) ?? []);
    assert.deepEqual(found.map((moment) => momentSentence(trace, moment)), moments);
    count += moments.length;
  }
  assert.ok(count > 60);
});

test("every reason", () => {
  const trace = opened("first.jsonl");
  for (const { reason, matched, why } of ends) {
    trace.end = { ...trace.end, reason, matched };
    assert.equal(whySentence(trace), why.replace("' six'", "'␣six'"));
  }
});

const constrained = opened("held.jsonl");
const shown = (/** @type {string} */ text) => text.replaceAll(/“(.*?)”/gs, (_, token) => `“${visible(token)}”`);

test("what the model wanted at every step, in Python's sentences", () => {
  const found = constrained.steps.map((step) => wantedSentence(constrained, step));
  assert.deepEqual(found, held.steps.map((/** @type {string | null} */ text) => text && shown(text)));
  assert.ok(found.filter(Boolean).length > 3);
});

test("what the grammar did to the text", () => {
  assert.deepEqual(constraintSentences(constrained), held.text.map(shown));
  assert.deepEqual(constraintSentences(opened("first.jsonl")), []);
});
