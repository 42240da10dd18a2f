import assert from "node:assert/strict";
import { test } from "node:test";
import { MOST_OFFERS, offers, openStep, picks } from "../../../../src/cutaway/trace/web/js/figures/next-token.js";

const candidate = (id, logit, removed_by = null) => ({ id, logit, removed_by });
const step = (sampled, count = 20) => ({ sampled_id: sampled, log_sum_exp: 10,
  candidates: Array.from({ length: count }, (_, i) => candidate(i, 10 - i, i > 2 ? 0 : null)) });
const run = (forced, steps) => ({ request: forced && { forced }, trace: { steps,
  head: { chain: [{ stage: "top_k", k: 3 }], end_ids: [1] }, nameOf: (id) => `t${id}` } });

test("the open step is the first that was not forced", () => {
  const [a, b] = [step(0), step(1)];
  assert.equal(openStep(run([7], [a, b])), b);
  assert.equal(openStep(run([7, 8], [a, b])), null);
  assert.equal(openStep(run(null, [a])), a);
  assert.deepEqual(picks(run(null, [])), []);
});

test("the likeliest tokens are offered, and always the one that was drawn", () => {
  const there = offers(run([], []), step(2));
  assert.deepEqual(there.map((offer) => offer.id), [0, 1, 2, 3, 4, 5, 6, 7]);
  assert.deepEqual(there.map((offer) => offer.drawn).indexOf(true), 2);
  const far = offers(run([], []), step(15));
  assert.deepEqual(far.map((offer) => offer.id), [0, 1, 2, 3, 4, 5, 6, 15]);
  assert.ok(far[MOST_OFFERS - 1].drawn);
});

test("an offer says how likely it is, what removes it and whether it ends the text", () => {
  const [best, second, , fourth] = offers(run([], []), step(0));
  assert.equal(best.probability, 1);
  assert.equal(second.probability, Math.exp(-1));
  assert.deepEqual([best.ends, second.ends], [false, true]);
  assert.deepEqual([best.letter, fourth.letter, fourth.removedBy], [null, "K", "top-k 3"]);
});
