// figures/sketch.js and figures/luck.js: a step with other settings, from the record alone, and the luck of a seed.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { luckOf } from "../../../../src/cutaway/trace/web/js/figures/luck.js";
import { riverOf } from "../../../../src/cutaway/trace/web/js/figures/river.js";
import { canSketch, chainWith, sketch } from "../../../../src/cutaway/trace/web/js/figures/sketch.js";
import { opened } from "./runs.mjs";

const traces = ["chains/biased", "chains/llama.cpp", "chains/penalties", "first", "six"].map((name) => opened(`${name}.jsonl`));
const near = (got, expected, error = 1e-6) => assert.ok(Math.abs(got - expected) <= error, `${got}, not ${expected}`);

function* steps() {
  for (const trace of traces) for (const step of trace.steps) if (canSketch(trace, step)) yield [trace, step];
}

test("with the recorded settings a sketch is the record", () => {
  let count = 0;
  for (const [trace, step] of steps()) {
    const other = sketch(trace, step, {});
    assert.deepEqual(other.trace.head.chain.map(({ stage }) => stage), trace.head.chain.map(({ stage }) => stage));
    assert.deepEqual(other.step.stages, step.stages);
    other.step.candidates.forEach((c, i) => {
      assert.equal(c.removed_by, step.candidates[i].removed_by);
      if (c.final_logprob !== null) near(c.final_logprob, step.candidates[i].final_logprob, 1e-5);
    });
    if (step.candidates.some(({ id }) => id === step.sampled_id)) assert.equal(other.step.sampled_id, step.sampled_id);
    count++;
  }
  assert.ok(count > 50, `${count}`);
});

test("another temperature divides the logits, and the bands are still 1 together", () => {
  for (const [trace, step] of steps()) {
    for (const temperature of [0.3, 1.5]) {
      const other = sketch(trace, step, { temperature });
      const left = other.step.candidates.filter(({ final_logprob: final }) => final !== null);
      for (const c of left) {
        const gap = ((left[0].logit + left[0].delta) - (c.logit + c.delta)) / temperature;
        near(left[0].final_logprob - c.final_logprob, gap, 1e-4);
      }
      const { bands, rests } = riverOf(other.trace, other.step);
      const last = bands.map(({ shares }) => shares.at(-1) ?? 0);
      near(last.reduce((a, b) => a + b, 0) + (rests.at(-1).share ?? 0), 1, 1e-3);
    }
  }
});

test("at temperature 0 the likeliest is taken, without luck; from there up luck is the seed's", () => {
  for (const [trace, step] of steps()) {
    const still = sketch(trace, step, { temperature: 0 });
    assert.ok(still.trace.head.chain.every(({ stage }) => stage !== "temperature"));
    assert.ok(still.step.candidates.every(({ luck }) => luck === null));
    const height = ({ logit, delta }) => logit + delta;
    const best = still.step.candidates.filter((c) => c.removed_by === null).reduce((a, b) => (height(b) > height(a) ? b : a));
    assert.equal(still.step.sampled_id, best.id);
    const again = sketch(still.trace, still.step, { temperature: trace.head.params.temperature });
    again.step.candidates.forEach(({ luck }, i) => near(luck, step.candidates[i].luck, 1e-9));
  }
});

test("a smaller share keeps the likeliest that reach it, and no more", () => {
  const trace = traces[1]; // the filter comes first, on the model's own probabilities
  const name = trace.head.chain[0].stage;
  for (const step of trace.steps) {
    const other = sketch(trace, step, { [name]: 0.3 });
    const kept = other.step.candidates.filter(({ removed_by: by }) => by !== 0).map(({ logit }) => Math.exp(logit - step.log_sum_exp));
    if (other.step.stages[0].survivors !== kept.length) continue; // tokens without a record are among them
    const sum = kept.reduce((a, b) => a + b, 0);
    assert.ok(sum >= 0.3 && sum - Math.min(...kept) < 0.3, `${sum}`);
    near(other.step.stages[0].removed_mass, 1 - sum);
  }
});

test("a setting that is off leaves the chain, and one that is turned on stands in the preset's order", () => {
  const [trace] = traces;
  assert.ok(!chainWith(trace, { temperature: 1 }).some(({ stage }) => stage === "temperature"));
  const chain = chainWith(trace, { top_k: 5 });
  assert.ok(chain.findIndex(({ stage }) => stage === "top_k") > chain.findIndex(({ stage }) => stage === "temperature"));
  const step = sketch(trace, trace.steps[0], { top_k: 5 }).step;
  assert.equal(step.stages[chain.findIndex(({ stage }) => stage === "top_k")].survivors, 5);
});

test("luck is that of the specification", () => {
  const { tokens } = JSON.parse(readFileSync(new URL("../../../../docs/luck.json", import.meta.url)));
  for (const { seed, position, token_id: id, gumbel } of tokens) near(luckOf(seed, position, id), hexFloat(gumbel), 1e-12);
});

/** @param {string} text as Python writes a float in hexadecimal */
function hexFloat(text) {
  const [, sign, whole, fraction, power] = /^(-?)0x(\d)\.([0-9a-f]+)p([+-]\d+)$/.exec(text);
  return (sign ? -1 : 1) * (Number(whole) + parseInt(fraction, 16) / 16 ** fraction.length) * 2 ** Number(power);
}
