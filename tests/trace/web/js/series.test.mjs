// figures/series.js and figures/end-explanation.js: a run's figures, whenever they were worked out, and what they say.

import assert from "node:assert/strict";
import { test } from "node:test";
import { allRows, endRows } from "../../../../src/cutaway/trace/web/js/parts/rows.js";
import { columnsOf } from "../../../../src/cutaway/trace/web/js/figures/columns.js";
import { Series, seriesOf } from "../../../../src/cutaway/trace/web/js/figures/series.js";
import { whyItWentOn } from "../../../../src/cutaway/trace/web/js/figures/end-explanation.js";
import { Trace } from "../../../../src/cutaway/trace/web/js/state/trace.js";
import { endMoment } from "../../../../src/cutaway/trace/web/js/figures/endings.js";
import { stepView } from "../../../../src/cutaway/trace/web/js/figures/step-view.js";
import { opened } from "./runs.mjs";

test("the figures are those of the steps' views", () => {
  const trace = opened("first.jsonl");
  const series = seriesOf(trace);
  assert.equal(series.length, trace.steps.length);
  trace.steps.forEach((step, i) => {
    const view = stepView(trace, step);
    assert.deepEqual([series.surprise[i], series.entropy[i], series.kv[i]], [view.bits, view.entropy, view.kvBytes]);
    assert.deepEqual(series.moments[i], view.end);
    assert.deepEqual(series.end[i], view.end?.probability ?? 0);
    const { schedule, run, sample } = view.ms;
    assert.deepEqual(series.ms.map((sums) => sums[i]), [schedule, schedule, schedule + run, schedule + run + sample]);
  });
});

test("a growing run has the figures of one that is read at once", () => {
  const whole = opened("first.jsonl");
  const growing = new Trace();
  growing.take(whole.head);
  const series = seriesOf(growing);
  assert.equal(series.length, 0);
  for (const step of whole.steps) {
    growing.steps.push(step);
    assert.equal(seriesOf(growing), series);
    assert.equal(series.length, growing.steps.length);
  }
  const { trace: _, ...grown } = series;
  const { trace: __, ...once } = new Series(whole);
  assert.deepEqual(grown, once);
});

test("end tokens that were not drawn are counted by outcome", () => {
  const trace = opened("first.jsonl");
  const { outcomes, silence } = new Series(trace);
  const moments = trace.steps.map((step) => endMoment(trace, step)).filter((moment) => moment !== null);
  assert.ok(moments.length);
  for (const [outcome, { count, expected }] of outcomes) {
    const of = moments.filter((moment) => moment.outcome === outcome);
    assert.equal(count, of.length);
    assert.ok(Math.abs(expected - of.reduce((sum, moment) => sum + moment.probability, 0)) < 1e-12);
  }
  const held = moments.filter(({ outcome }) => !["drawn", "forced"].includes(outcome));
  assert.equal(silence.model, held.reduce((left, { probability }) => left * (1 - probability), 1));
  assert.equal(silence.final, held.reduce((left, { final }) => left * (1 - final), 1));
});

test("each row draws every step once, and each outcome has its lane", () => {
  const series = seriesOf(opened("first.jsonl"));
  const columns = columnsOf({ first: 0, step: 8, width: 8 * series.length, count: series.length });
  const bars = (row) => [...row.paths(columns, 100).values()].join("").match(/M/g)?.length ?? 0;
  const rows = allRows(series);
  const lanes = endRows(series).slice(1);
  assert.deepEqual(lanes.map((row) => row.top), [...series.outcomes.values()].map(({ letter }) => letter));
  assert.deepEqual(lanes.map(bars), [...series.outcomes.values()].map(({ count }) => count));
  for (const name of ["surprise", "entropy", "KV"]) {
    assert.equal(bars(rows.find((row) => row.name === name)), series.length, name);
  }
  assert.equal(bars(endRows(series)[0]), series.length);
  assert.equal(bars(rows.find((row) => row.name === "time")), 4 * series.length);
});

test("a canvas has no row for what its record does not have", () => {
  const none = { trace: { head: { decoder: {} } }, surprise: [1], entropy: [1], moments: [null], end: [0],
    kv: [0], ms: [[1], [1], [2], [2]], outcomes: new Map() };
  const names = (series) => allRows(series).map(({ name }) => name);
  assert.deepEqual(names(none), ["surprise", "entropy", "time"]);
  assert.deepEqual(names({ ...none, kv: [8] }), ["surprise", "entropy", "KV", "time"]);
  assert.deepEqual(names({ ...none, trace: { head: {} } }), ["surprise", "entropy", "KV", "time"]);
});

const told = (outcomes, silence, more = {}) => whyItWentOn({
  outcomes: new Map(Object.entries(outcomes)), silence, length: 10, moments: [],
  trace: { head: { params: {} } }, ...more,
});

test("the model, the chain or luck kept a text going", () => {
  const top = { letter: "K", count: 8, expected: 2 };
  const low = { letter: "P", count: 1, expected: 0.1 };
  const lost = { letter: "○", count: 1, expected: 0.2 };
  const all = { "top-p 0.9": low, "top-k 40": top, lost };
  assert.match(told(all, { model: 0.9, final: 0.95 })[1], /the model itself was unlikely to end/);
  assert.match(told(all, { model: 0.1, final: 0.95 })[1], /the chain, above all top-k 40, prevented it/);
  assert.match(told(all, { model: 0.1, final: 0.2 })[1], /luck kept the text going/);
  const outranked = { letter: "○", count: 10, expected: 0.2 };
  const moments = [0.2, 0.4, 0.1].map((share, index) => ({ index, probability: share, delta: 0 }));
  const greedy = (/** @type {any} */ end) => told({ outranked }, { model: 0.1, final: 1 }, { moments, trace: { end, head: { params: { temperature: 0 } } } });
  assert.deepEqual(greedy({ reason: "max_tokens" }), ["Of 10 steps, in 10 the end token was not the likeliest.",
    "Under the model's own probabilities the chance to come this far without an end was 10.0%; after the chain it was 100%. "
    + "Temperature 0 takes the likeliest token, which the end token never was; it was nearest at step 2, with 40.0%."]);
  assert.match(greedy({ reason: "end_token" })[1], /never was before; it was nearest at step 2/);
  assert.equal(told(all, { model: 1, final: 1 })[0], "Of 10 steps, in 8 the end token was removed by "
    + "top-k 40; in 1 it was removed by top-p 0.9; in 1 it survived and lost the draw.");
});

test("there is no sentence on draws where there were none", () => {
  assert.deepEqual(told({}, { model: 1, final: 1 }), []);
  assert.equal(told({ forced: { letter: "→", count: 10, expected: 1 } }, { model: 1, final: 1 }).length, 1);
});

test("an end token that was drawn and ignored is explained", () => {
  const outcomes = { drawn: { letter: "●", count: 1, expected: 1 }, lost: { letter: "○", count: 9, expected: 1 } };
  const ignoring = { trace: { head: { params: { ignore_eos: true } } } };
  assert.match(told(outcomes, { model: 0.1, final: 0.1 }, ignoring)[1], /ignore_eos is set/);
  assert.match(told(outcomes, { model: 0.1, final: 0.1 })[1], /luck/);
});

test("the effect of penalties on the end token is explained", () => {
  const moments = [{ delta: -1 }, { delta: 0 }, null, { delta: 2 }, { delta: -3 }];
  const words = told({ lost: { letter: "○", count: 4, expected: 1 } }, { model: 1, final: 1 }, { moments });
  assert.deepEqual(words.slice(2), ["Bias, penalties or processors lowered its logit in 2 of the steps.",
    "Bias, penalties or processors raised its logit in 1 of the steps."]);
});
