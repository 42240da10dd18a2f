// figures/constraint.js beside trace/constraint.py: data/sentences.json has what Python says.

import assert from "node:assert/strict";
import { test } from "node:test";
import { constraintSentences, wantedSentence } from "../../../../src/cutaway/trace/web/js/figures/constraint.js";
import { visible } from "../../../../src/cutaway/trace/web/js/figures/numbers.js";
import { opened, read } from "./runs.mjs";

const { held } = JSON.parse(read("sentences.json"));
const trace = opened("held.jsonl");
const shown = (/** @type {string} */ text) => text.replaceAll(/“(.*?)”/gs, (_, token) => `“${visible(token)}”`);

test("what the model wanted at every step, in the words of Python", () => {
  const found = trace.steps.map((step) => wantedSentence(trace, step));
  assert.deepEqual(found, held.steps.map((/** @type {string | null} */ text) => text && shown(text)));
  assert.ok(found.filter(Boolean).length > 3);
});

test("what the grammar did to the text", () => {
  assert.deepEqual(constraintSentences(trace), held.text.map(shown));
  assert.deepEqual(constraintSentences(opened("first.jsonl")), []);
});
