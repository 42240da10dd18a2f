import assert from "node:assert/strict";
import { test } from "node:test";
import { mostUncertain } from "../../../../src/cutaway/trace/web/js/figures/step-view.js";

const END = 2;
const trace = (...steps) => ({ head: { end_ids: [END] },
  steps: steps.map(([token_id, logprob, source = "sampled"], index) => ({ index, token_id, logprob, source })) });

test("the token of least probability, the first of equal ones", () => {
  assert.equal(mostUncertain(trace([7, -0.1], [8, -3], [9, -0.5], [8, -3])), 1);
});

test("a forced token and an end token only where there is no other", () => {
  assert.equal(mostUncertain(trace([7, -9, "forced"], [8, -0.2], [9, -0.5], [END, -5])), 2);
  assert.equal(mostUncertain(trace([7, -1, "forced"], [END, -5])), 1);
  assert.equal(mostUncertain(trace([END, -0.1])), 0);
  assert.equal(mostUncertain(trace()), 0);
});
