// figures/endings.js beside trace/endings.py: data/sentences.json has what Python says.

import assert from "node:assert/strict";
import { test } from "node:test";
import { endMoment, momentSentence, whySentence } from "../../../../src/cutaway/trace/web/js/figures/endings.js";
import { opened, read } from "./runs.mjs";

const { ends, held: _, ...cases } = JSON.parse(read("sentences.json"));

test("every step and every end in the words of Python", () => {
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
