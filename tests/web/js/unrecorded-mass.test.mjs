// js/figures/unrecorded-mass.js beside rows whose every logit is known.

import assert from "node:assert/strict";
import { test } from "node:test";
import { cut, heated, massOf, size, sum } from "../../../src/cutaway/web/js/figures/unrecorded-mass.js";

const OFF = 1e-9; // of rounding

/** @param {number} seed @returns {() => number} 0 … 1, the same every time */
function random(seed) {
  let state = seed;
  return () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32;
}

/** Logits, best first, and the rest that stands for them: one group for each nat. */
function row(seed) {
  const next = random(seed);
  const logits = Array.from({ length: 200 }, () => -8 * next() ** 0.5).sort((a, b) => b - a);
  const groups = Array.from({ length: 8 }, (_, bin) => ({
    count: logits.filter((z) => Math.floor(-z) === bin).length,
    low: bin === 7 ? -Infinity : -bin - 1,
    high: -bin,
  })).filter(({ count }) => count);
  const mass = sum(logits.map(Math.exp));
  return { logits, rest: { groups, mass: [mass, mass], ref: 0 } };
}

const within = ([low, high], value) => low <= value * (1 + OFF) && value <= high * (1 + OFF);

for (const temperature of [0.1, 0.5, 0.9, 1.1, 2, 10]) {
  test(`at temperature ${temperature} the exact mass lies within, of all and of the best`, () => {
    for (let seed = 1; seed <= 50; seed++) {
      const { logits, rest } = row(seed);
      const hot = heated(rest, temperature);
      const weights = logits.map((z) => Math.exp(z / temperature));
      assert.ok(within(hot.mass, sum(weights)), `${hot.mass} ${sum(weights)}`);
      for (const count of [0, 1, 17, 120, 200]) {
        const exact = sum(weights.slice(0, count));
        assert.ok(within(massOf(hot, count), exact), `${count}: ${massOf(hot, count)} ${exact}`);
        const best = heated(cut(rest, Math.floor(count / 2), count), temperature);
        assert.equal(size(best), count);
        assert.ok(within(best.mass, exact) && within(best.mass, sum(weights.slice(0, count / 2))));
      }
    }
  });
}

test("what is known of the mass makes the interval narrower than the groups alone", () => {
  const { rest } = row(3);
  const known = heated(rest, 1.2).mass;
  const unknown = heated({ ...rest, mass: [0, Infinity] }, 1.2).mass;
  assert.ok(known[1] - known[0] < (unknown[1] - unknown[0]) / 4, `${known} ${unknown}`);
});
