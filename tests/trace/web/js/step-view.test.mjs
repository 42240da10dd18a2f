// figures/step-view.js: probabilities stage by stage, and which step is the most uncertain one.

import assert from "node:assert/strict";
import { test } from "node:test";
import { mostUncertain, stageProbabilities } from "../../../../src/cutaway/trace/web/js/figures/step-view.js";
import { opened } from "./runs.mjs";

const traces = ["penalties", "biased", "llama.cpp"].map((name) => opened(`chains/${name}.jsonl`));

test("a token's probabilities end at the final one, or where it was removed", () => {
  const ends = { survived: 0, removed: 0 };
  for (const trace of traces.filter(({ head }) => head.chain.length)) {
    for (const step of trace.steps) {
      for (const c of step.candidates) {
        const path = stageProbabilities(trace, step, c);
        assert.equal(path.length, trace.head.chain.length);
        if (c.final_logprob === null) {
          assert.equal(path.indexOf(null), c.removed_by);
          ends.removed++;
        } else {
          const error = Math.log(path.at(-1)) - c.final_logprob;
          assert.ok(Math.abs(error) < 1e-5, `${error}`);
          ends.survived++;
        }
      }
    }
  }
  assert.ok(ends.survived > 100 && ends.removed > 100);
});

test("between two stages that adjust logits, the probability is unknown", () => {
  const trace = traces.find(({ head }) => head.chain[0]?.stage === "logit_bias");
  const [first, second] = stageProbabilities(trace, trace.steps[0], trace.steps[0].candidates[0]);
  assert.equal(first, undefined);
  assert.equal(typeof second, "number");
});

const END = 2;
const drawn = (...steps) => ({ head: { end_ids: [END] },
  steps: steps.map(([token_id, logprob, source = "sampled"], index) => ({ index, token_id, logprob, source })) });

test("the most uncertain step has the token of least probability, the first of equal ones", () => {
  assert.equal(mostUncertain(drawn([7, -0.1], [8, -3], [9, -0.5], [8, -3])), 1);
});

test("a forced token and an end token only where there is no other", () => {
  assert.equal(mostUncertain(drawn([7, -9, "forced"], [8, -0.2], [9, -0.5], [END, -5])), 2);
  assert.equal(mostUncertain(drawn([7, -1, "forced"], [END, -5])), 1);
  assert.equal(mostUncertain(drawn([END, -0.1])), 0);
  assert.equal(mostUncertain(drawn()), 0);
});
