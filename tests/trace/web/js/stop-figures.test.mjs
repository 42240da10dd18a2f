// lessons/stop-figures.js: exact figures of the end token, and sentences that follow from them.

import assert from "node:assert/strict";
import { test } from "node:test";
import { closest } from "../../../../src/cutaway/trace/web/js/figures/endings.js";
import { seriesOf } from "../../../../src/cutaway/trace/web/js/figures/series.js";
import { changes, passedMoments, rerunOf, momentsWithin, keepSentence }
  from "../../../../src/cutaway/trace/web/js/lessons/stop-figures.js";
import { END, runOf, step, traceOf } from "./lessons.mjs";

/** A step that went on; its end token has probability p and a rank. */
const passed = (p, rank, more = {}) => step(3, { others: [{
  id: END, logit: Math.log(p), rank, removed_by: 1, final_logprob: null, ...more }] });
const lost = (p, rank) => passed(p, rank, { removed_by: null, final_logprob: Math.log(p), luck: -5 });
const over = { reason: "max_tokens", matched: null };

test("moments grow with the run, and the step that ended it is not a passed one", () => {
  const trace = traceOf([passed(0.1, 5)]);
  assert.equal(seriesOf(trace).moments.length, 1);
  trace.take({ ...step(END, { logprob: -0.1 }), index: 1, position: 3 });
  assert.deepEqual(seriesOf(trace).moments.map((m) => m.outcome), ["top-k 2", "drawn"]);
  assert.equal(passedMoments(trace).length, 2);
  trace.take({ kind: "end", reason: "end_token", matched: END, text: "" });
  assert.equal(passedMoments(trace).length, 1);
});

test("top-k keeps exactly the ranks up to it, and the first of the likeliest is taken", () => {
  const moments = passedMoments(traceOf([passed(0.1, 5), passed(0.3, 2), passed(0.3, 2), lost(0.01, 40)]));
  assert.deepEqual([1, 2, 5, 39, 40, 0].map((k) => momentsWithin(moments, k).length), [0, 2, 3, 3, 4, 4]);
  assert.equal(closest(moments)[0]?.index, 1);
  assert.match(keepSentence(moments, 1), /at no step/);
  assert.match(keepSentence(moments, 5), /top-k 5 and no other filter, .* 3 of 4 steps, with a probability of up to 30\.0%/);
});

test("penalties make a rank an estimate, and the sentence says so", () => {
  const moments = passedMoments(traceOf([passed(0.1, 5, { delta: -1 })]));
  assert.match(keepSentence(moments, 0), /before penalties/);
});

test("a rerun is found by its beginning, and a fork is none", () => {
  const original = runOf(1, traceOf([passed(0.3, 5), step(4), step(5)], { end: over }));
  const fork = runOf(2, traceOf([step(3), step(8)]), { parent: 1, at: 1, forced: [3, 8] });
  const again = runOf(3, traceOf([step(3), step(8)]), { parent: 1, at: 1, forced: [3] });
  assert.equal(rerunOf([original, fork], original), null);
  assert.equal(rerunOf([original, fork, again], original)?.again, again);
  assert.equal(rerunOf([original, fork, again], again)?.original, original);
});

test("what changed: at that step, where the texts diverge, how both ended", () => {
  const original = runOf(1, traceOf([step(3), passed(0.3, 5), step(5)], { end: over }));
  const ended = { reason: "end_token", matched: END };
  const drawn = step(END, { logprob: Math.log(0.3) });
  const again = runOf(2, traceOf([step(3), drawn], { end: ended }), { parent: 1, at: 1, forced: [3] });
  const [there, parted, both] = changes(original, again);
  assert.match(there, /^At step 2 the end token was removed by top-k 2; now it was chosen \(.*: 30\.0%\)\.$/);
  assert.match(parted, /diverge at step 2: the first has “t3 ”, this one “t9 ”/);
  assert.match(both, /^Before: It ended because it had 3 tokens, .* Now: .* the end token 't9␣' was chosen at step 2\.$/);
  assert.match(changes(original, { ...original, at: 1 })[1], /the same tokens/);
});
