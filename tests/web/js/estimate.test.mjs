// js/estimate.js beside exact figures: data/estimates.json was written by record_estimates.py.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { estimate } from "../../../src/cutaway/web/js/figures/estimate.js";
import { Trace } from "../../../src/cutaway/web/js/state/trace.js";

const file = new URL("../data/estimates.json", import.meta.url);
const { settings, runs } = JSON.parse(readFileSync(file, "utf8"));
const DIGITS = 2e-9; // the exact figures were written with ten digits
const ULP = 4e-6; // of a logit near 40: a bias is on record no closer
const NOTHING = 1e-300; // the sampler's exp ends at −700

/** Every (trace, step, settings, exact figures) on file. */
function* cases() {
  for (const run of runs) {
    const trace = Trace.parse(run.lines.map((line) => `${line}\n`).join(""));
    for (const step of trace.steps) {
      for (const [i, asked] of settings.entries()) {
        yield { trace, step, asked, exact: run.exact[step.index][i] };
      }
    }
  }
}

test("every exact probability lies within its interval", () => {
  let count = 0;
  for (const { trace, step, asked, exact } of cases()) {
    const { chances } = estimate(trace, step, asked);
    for (const [i, { id }] of step.candidates.entries()) {
      const { low, high, fate } = chances.get(id);
      const p = exact.probabilities[i];
      const told = JSON.stringify({ prompt: trace.head.prompt, step: step.index, asked, id, low, p, high, fate });
      assert.ok(low <= p * (1 + DIGITS) && p * (1 - DIGITS) <= high + NOTHING, told);
      count++;
    }
  }
  assert.ok(count > 10_000);
});

test("most intervals are narrow", () => {
  const widths = [...cases()].flatMap(({ trace, step, asked }) =>
    [...estimate(trace, step, asked).chances.values()].map(({ low, high }) => high - low));
  widths.sort((a, b) => a - b);
  const at = (share) => widths[Math.floor(widths.length * share)];
  assert.ok(at(0.75) < 0.001 && at(0.9) < 0.02, `${at(0.75)} ${at(0.9)}`);
});

test("what is not on record has what the others have not", () => {
  for (const { trace, step, asked, exact } of cases()) {
    const [low, high] = estimate(trace, step, asked).others;
    const rest = 1 - exact.probabilities.reduce((a, b) => a + b, 0);
    assert.ok(low - ULP <= rest && rest <= high + ULP, JSON.stringify({ step: step.index, asked, low, rest, high }));
  }
});

test("a winner that is called certain wins", () => {
  let certain = 0;
  for (const { trace, step, asked, exact } of cases()) {
    const found = estimate(trace, step, asked);
    const on = step.candidates.some(({ id }) => id === exact.winner);
    const told = JSON.stringify({ prompt: trace.head.prompt, step: step.index, asked, ...found, exact: exact.winner });
    if (found.certain) assert.equal(found.leader, exact.winner, told);
    if (!on) assert.ok(found.rivals, told);
    certain += Number(found.certain);
  }
  assert.ok(certain > 400, `only ${certain}`); // of 770: what can be told is told
});

test("the recorded settings give back the record", () => {
  for (const run of runs) {
    const trace = Trace.parse(run.lines.map((line) => `${line}\n`).join(""));
    const { params } = trace.head;
    for (const step of trace.steps) {
      const found = estimate(trace, step, params);
      if (found.certain) assert.equal(found.leader, step.own);
      for (const c of step.candidates) {
        const { low, high } = found.chances.get(c.id);
        const p = params.temperature === 0 ? Number(c.id === step.own) : c.final_logprob === null ? 0 : Math.exp(c.final_logprob);
        assert.ok(low * (1 - 1e-9) <= p && p <= high * (1 + 1e-9), JSON.stringify({ step: step.index, id: c.id, low, p, high }));
      }
    }
  }
});
