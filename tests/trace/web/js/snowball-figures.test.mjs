// lessons/snowball-figures.js: the experiment among the runs, its curves, and sentences that follow from them.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  againSentence, bands, changeWord, earlyStep, firstCommonRun, freeSentence, mistakeAt, pairOf, points, wordsAfter,
} from "../../../../src/cutaway/trace/web/js/lessons/snowball-figures.js";
import { END, runOf, step, traceOf } from "./lessons.mjs";

const LN2 = Math.LN2;
const words = (ids, bits = () => 1) => ids.map((id, i) => step(id, { logprob: -bits(i) * LN2 }));
const range = (from, count) => Array.from({ length: count }, (_, i) => from + i);

/** An original of `count` tokens from 100 on, a mistake at step 1, and the two ways on. */
function experiment(free, { count = 30, cost = () => 0 } = {}) {
  const ids = range(100, count);
  const original = runOf(1, traceOf(words(ids)));
  const own = [ids[0], 50, ...free];
  const said = [ids[0], 50, ...ids.slice(2)];
  const a = runOf(2, traceOf(words(own)), { parent: 1, at: 1, forced: own.slice(0, 2) });
  const b = runOf(3, traceOf(words(said, (i) => 1 + cost(i - 1))), { parent: 1, at: 1, forced: said });
  return { original, free: a, again: b, at: 1, runs: [original, a, b] };
}

test("the mistake is the likeliest token that is less likely than the step's, and never an end token", () => {
  const others = [{ id: END, logit: 0, rank: 1 }, { id: 8, logit: -1, rank: 2 }, { id: 7, logit: -3, rank: 5 }, { id: 6, logit: -2, rank: 4 }];
  const trace = traceOf([step(3, { others, rank: 3 }), step(4), step(3, { others, rank: 9 })]);
  assert.equal(mistakeAt(trace, 0)?.id, 6);
  assert.equal(mistakeAt(trace, 1), null);
  assert.equal(mistakeAt(trace, 2)?.id, 8); // none is less likely: a change, and no mistake
  assert.equal(mistakeAt(trace, 3), null);
  assert.deepEqual([changeWord(trace, 0, 6), changeWord(trace, 0, 8), changeWord(trace, 2, 8)], ["mistake", "change", "change"]);
});

test("the first step whose token was the likeliest by far is offered, and no forced one", () => {
  const others = [{ id: 6, logit: -3, rank: 2 }];
  const close = [{ id: 6, logit: -1.5, rank: 2 }];
  const trace = traceOf([step(3, { others, rank: 5 }), step(3, { others, rank: 1, source: "forced" }), step(4, { rank: 1 }), step(5, { others, rank: 1 })]);
  assert.equal(earlyStep(trace), 3);
  assert.equal(earlyStep(traceOf([step(3, { others: close }), step(4, { others: close }), step(5, { others })])), 2);
  assert.equal(earlyStep(traceOf([step(3), step(4, { others: close }), step(5, { others: close })])), 1);
  assert.equal(earlyStep(traceOf([step(3, { others, rank: 5 })])), null);
});

test("what replaced a less likely token is called a change", () => {
  const all = points(experiment(range(200, 28)));
  assert.match(againSentence(all, "change"), /^After the change/);
  assert.match(againSentence(all), /^After the mistake/);
});

test("an end token does not count", () => {
  assert.deepEqual(wordsAfter(traceOf(words([3, 4, 5, END])), 0), [4, 5]);
});

test("the experiment is found from each of its runs, and from no other one", () => {
  const { original, free, again, runs } = experiment(range(200, 28));
  const stranger = runOf(4, original.trace, { parent: 1, at: 5, forced: [100] });
  for (const run of runs) {
    const pair = pairOf([...runs, stranger], run, 0);
    assert.deepEqual([pair?.original.id, pair?.free.id, pair?.again.id, pair?.at], [1, 2, 3, 1]);
  }
  assert.equal(pairOf([...runs, stranger], stranger, 0), null);
  assert.equal(pairOf([original, again], again, 0), null);
  assert.equal(pairOf([original, free], free, 0), null);
});

test("a fork with other forced tokens than the original's is no such experiment", () => {
  const { original, free, again } = experiment(range(200, 28));
  const other = { ...again, request: { forced: again.request.forced.with(5, 7) } };
  assert.equal(pairOf([original, free, other], original, 1), null);
});

test("of two experiments the one at the selected step is found", () => {
  const one = experiment(range(200, 28));
  const two = { ...one.again, id: 5 };
  const runs = [...one.runs, two];
  assert.equal(pairOf(runs, one.original, 1)?.again.id, 5);
  assert.equal(pairOf(runs, two, 0)?.again.id, 5);
});

test("bits are at their distance; missing ones are null", () => {
  const all = points(experiment([102, 200], { count: 5, cost: (d) => 3 / d }));
  assert.deepEqual(all.map((p) => p.distance), [1, 2, 3]);
  assert.deepEqual(all.map((p) => p.same), [true, false, false]);
  assert.deepEqual(all.map((p) => p.free), [1, 1, null]);
  all.forEach((p, i) => assert.ok(Math.abs((p.again ?? 0) - 1 - 3 / (i + 1)) < 1e-12));
});

test("the mean of bands that double is that of their points", () => {
  const all = points(experiment(range(200, 3), { count: 9, cost: (d) => d }));
  const found = bands(all);
  assert.deepEqual(found.map((b) => b.name), ["1", "2", "3–4", "5–7"]);
  found.forEach((b, i) => assert.ok(Math.abs(b.cost - [1, 2, 3.5, 6][i]) < 1e-9));
  assert.equal(found[3]?.free, null);
});

test("texts rejoin with eight tokens in a row, wherever the original has them", () => {
  const theirs = range(102, 28);
  assert.equal(firstCommonRun(experiment(theirs.slice(0, 7))), null);
  assert.deepEqual(firstCommonRun(experiment([200, 201, ...theirs.slice(2, 12), 7])),
    { distance: 3, shift: 0, length: 10, diverges: true });
  assert.deepEqual(firstCommonRun(experiment(theirs.slice(4))), { distance: 1, shift: 4, length: 24, diverges: false });
  assert.equal(firstCommonRun(experiment([200, ...theirs.slice(0, 9)]))?.shift, -1);
});

test("the sentence says what the curve does", () => {
  const told = (cost, count = 40) => againSentence(points(experiment([], { count, cost })));
  assert.match(told((d) => (d < 5 ? 2 : 0)), /cost 2\.00 bits more each, .* the model recovers once/);
  assert.match(told(() => 0), /no less likely/);
  assert.match(told((d) => (d < 5 ? -0.5 : 0)), /0\.50 bits less each.*no less likely/);
  assert.match(told((d) => (d < 5 ? 2 : 1)), /recovers in part/);
  assert.match(told(() => 2), /does not recover within 38/);
  assert.match(told(() => 2, 10), /Only 8 tokens of the original/);
});

test("how the free text continues is explained", () => {
  const told = (free) => {
    const made = experiment(free);
    return freeSentence(points(made), firstCommonRun(made));
  };
  assert.match(told(range(200, 28)), /never rejoins .* in 28 tokens \(no 8 in a row are equal\); its own tokens have a surprise of 1\.00 bits each/);
  assert.match(told([200, ...range(103, 20), 7]), /repeats 20 .* from distance 2 on, at the same position, and then diverges again/);
  assert.equal(told([]), "Left to itself, the model generates no token after the mistake.");
});
