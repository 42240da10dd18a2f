import assert from "node:assert/strict";
import { test } from "node:test";
import { cost, costLine, priceOf, tokensLine, total, usageOf } from "../../../../src/cutaway/trace/web/js/figures/cost.js";

const ended = { trace: { known: { prompt_token_ids: [1, 2, 3] }, steps: [{}, {}],
  end: { usage: { prompt_tokens: 3, cached_tokens: 2, completion_tokens: 2 } } } };
const cut = { trace: { known: { prompt_token_ids: [1, 2, 3] }, steps: [{}], end: null } };
const waiting = { trace: { known: null, steps: [], end: null } };

test("the usage of a run that has ended, and of one that has not", () => {
  assert.deepEqual(usageOf(ended), { prompt: 3, cached: 2, completion: 2, whole: true });
  assert.deepEqual(usageOf(cut), { prompt: 3, cached: 0, completion: 1, whole: false });
  assert.deepEqual(usageOf(waiting), { prompt: 0, cached: 0, completion: 0, whole: false });
  assert.deepEqual(total([ended, cut].map(usageOf)), { prompt: 6, cached: 2, completion: 3, whole: false });
});

test("the lines are those of the command line", () => {
  assert.equal(tokensLine(usageOf(ended)), "3 tokens in (2 cached), 2 out");
  assert.equal(tokensLine(usageOf(cut)), "3 tokens in, 1 out so far");
  const million = { prompt: 1e6, cached: 0, completion: 5e5, whole: true };
  assert.deepEqual(cost(million, { input: 0.15, output: 0.6 }), { input: 0.15, output: 0.3, total: 0.15 + 0.3 });
  assert.equal(costLine(million, { input: 0.15, output: 0.6 }), "cost 0.450000 = 0.150000 in + 0.300000 out");
});

test("a price is a number, 0 or more", () => {
  for (const [text, price] of [["0.15", 0.15], ["0", 0], ["", null], [" ", null], ["-1", null], ["x", null],
    ["Infinity", null]]) assert.equal(priceOf(text), price, text);
});
