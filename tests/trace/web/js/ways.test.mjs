// figures/ways.js: how a text was computed, what that cost, and which runs are the same text.

import assert from "node:assert/strict";
import { test } from "node:test";
import { computedTokens, draftSentence, twinOf, waySentence } from "../../../../src/cutaway/trace/web/js/figures/ways.js";
import { seriesOf } from "../../../../src/cutaway/trace/web/js/figures/series.js";
import { timesOf } from "../../../../src/cutaway/trace/web/js/figures/time.js";
import { allRows } from "../../../../src/cutaway/trace/web/js/parts/rows.js";
import { Trace } from "../../../../src/cutaway/trace/web/js/state/trace.js";
import { opened, read, run } from "./runs.mjs";

const changed = (name, ...pairs) =>
  Trace.parse(pairs.reduce((text, [from, to]) => {
    assert.ok(text.includes(from), from);
    return text.replaceAll(from, to);
  }, read(name)));

const cached = opened("first.jsonl");
const naive = changed("first.jsonl", ['"kv_cache":true', '"kv_cache":false']);
const drafted = changed("first.jsonl", ['"speculate":"off"', '"speculate":"ngram"'],
  ['"speculation":{"proposed":0,"accepted":0}', '"speculation":{"proposed":9,"accepted":4}']);

test("without the cache a step computes all tokens before its own, with it one and its drafts", () => {
  const prompt = cached.head.prompt_token_ids.length, count = cached.steps.length;
  assert.equal(computedTokens(cached), prompt + count - 1);
  assert.equal(computedTokens(naive), count * prompt + (count * (count - 1)) / 2);
  assert.equal(computedTokens(drafted), prompt + count - 1 + 9 - 4);
});

test("a prompt's tokens that a cache had are not computed", () => {
  const { usage } = cached.end;
  const again = { ...cached, head: cached.head, steps: cached.steps, end: { ...cached.end, usage: { ...usage, cached_tokens: 3 } } };
  assert.equal(computedTokens(again), computedTokens(cached) - 3);
});

test("the same text is found by its hashes, where it was computed in another way", () => {
  const first = run(1, { trace: cached }), same = run(2, { trace: opened("first.jsonl") });
  const other = run(3, { trace: changed("six.jsonl", ['"kv_cache":true', '"kv_cache":false']) });
  assert.equal(twinOf([first, same, other], first), null);
  const slow = run(4, { trace: naive }), quick = run(5, { trace: drafted });
  assert.equal(twinOf([first, slow, other], first), slow);
  assert.equal(twinOf([first, slow, quick], first), quick);
  assert.equal(twinOf([first, slow, quick], slow), quick);
  assert.equal(twinOf([run(6), first], slow), first);
});

test("a text that grows is the same as far as it goes", () => {
  const growing = new Trace();
  growing.take(naive.head);
  const [first, slow] = [run(1, { trace: cached }), run(2, { trace: growing })];
  assert.equal(twinOf([first, slow], first), null);
  growing.steps.push(...naive.steps.slice(0, 5));
  assert.equal(twinOf([first, slow], first), slow);
  assert.deepEqual(allRows(seriesOf(cached), slow).map(({ name }) => name).slice(-2), ["time", "run 2"]);
  growing.steps.push({ ...naive.steps[5], fingerprint: "0000000000000000" });
  assert.equal(twinOf([first, slow], first), null);
});

test("both ways in words", () => {
  const slow = run(2, { trace: naive });
  assert.equal(waySentence(run(1, { trace: cached }), slow), "Written with the KV cache: the model computed "
    + `${computedTokens(cached)} tokens. Run 2 is the same text without the KV cache, ${computedTokens(naive)} tokens: `
    + "every step has the same hash.");
  assert.equal(draftSentence(cached), "");
  const count = drafted.steps.length;
  assert.equal(draftSentence(drafted), `4 of 9 draft tokens were right (underlined): ${count - 4} passes of the model wrote ${count} tokens.`);
  assert.match(waySentence(run(1, { trace: drafted }), null), /^Written with drafts \(ngram\): the model computed/);
});

test("tokens of one pass have its time once", () => {
  const one = { ...cached.steps[0], ms: { schedule: 1, run: 20, sample: 3 } };
  const trace = new Trace();
  trace.take(cached.head);
  trace.steps.push(one, { ...cached.steps[1], ms: one.ms }, { ...cached.steps[2], ms: { ...one.ms, run: 21 } });
  assert.deepEqual(seriesOf(trace).ms.at(-1), [24, 0, 25]);
});

test("where the record has no times, each token has a pass", () => {
  const trace = new Trace();
  trace.take(cached.head);
  const ms = { schedule: 0, run: 0, sample: 0 };
  for (const step of cached.steps.slice(0, 3)) trace.steps.push({ ...step, ms });
  assert.equal(timesOf(trace).blocks.length, 3);
});
