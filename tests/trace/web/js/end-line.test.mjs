// drawings/end-line.js: the heights, colours and words under the text are the record's.

import assert from "node:assert/strict";
import { test } from "node:test";
import { HIGH, endCursor, endLine } from "../../../../src/cutaway/trace/web/js/drawings/end-line.js";
import { endSentence, findNearMiss, outcomeColour } from "../../../../src/cutaway/trace/web/js/figures/endings.js";
import { seriesOf } from "../../../../src/cutaway/trace/web/js/figures/series.js";
import { opened, recording } from "./runs.mjs";

const STEP = 10; // pixels

/** The bars of a drawing by step: height and colour. */
function barsOf(series) {
  const found = [];
  for (const { attributes } of endLine(series, STEP * series.length).filter(({ attributes }) => attributes.class === "measured")) {
    for (const [, x, foot, up] of attributes.d.matchAll(/M(\d+) ([\d.]+)v-([\d.]+)h/g)) {
      assert.equal(Number(foot), HIGH);
      found[Number(x) / STEP] = [Number(up), attributes.style.fill];
    }
  }
  return found;
}

test("heights are the end token's probabilities on a logarithmic scale, colours what became of it", () => {
  for (const trace of [recording(), ...["first.jsonl", "chains/penalties.jsonl", "chains/llama.cpp.jsonl"].map(opened)]) {
    const series = seriesOf(trace);
    const found = barsOf(series);
    let above = 0;
    trace.steps.forEach((step, i) => {
      const share = step.candidates.filter(({ id }) => trace.head.end_ids.includes(id))
        .reduce((sum, { logit }) => sum + Math.exp(logit - step.log_sum_exp), 0);
      const up = Math.max(HIGH * (1 + Math.log10(share) / 4), 1);
      assert.ok(Math.abs(found[i][0] - up) <= 0.051, `step ${i}: ${found[i][0]} is not ${up}`);
      assert.equal(found[i][1], outcomeColour(series.moments[i].letter));
      above += up > 1;
    });
    assert.equal(found.length, trace.steps.length);
    assert.ok(trace !== recording() || above > 2);
  }
});

test("the flag is at the highest peak that failed", () => {
  const series = seriesOf(recording());
  const flags = endLine(series, STEP * series.length).filter(({ attributes }) => attributes.class === "flag");
  const failed = series.end.slice(0, -1);
  const peak = failed.indexOf(Math.max(...failed));
  assert.equal(findNearMiss(series.trace, series.moments).index, peak);
  const [pole, words] = flags[0].children;
  assert.match(pole.attributes.d, new RegExp(`^M${(peak + 0.5) * STEP} 0`));
  assert.equal(words.children[0], `almost ended here: ${(100 * failed[peak]).toFixed(1)}%`);
  assert.equal(flags.length, 1);
  assert.equal(findNearMiss(series.trace, series.moments.map((m) => m && { ...m, probability: m.probability / 1e3 })), null);
});

test("the selected step and the end have their places and words", () => {
  const series = seriesOf(recording());
  const { x, width } = endCursor(series, STEP * series.length, 23).attributes;
  assert.equal(x + width / 2, 23.5 * STEP);
  const labels = endLine(series, 1000).filter(({ name }) => name === "text").map(({ children }) => children[0]);
  assert.deepEqual(labels, [`ended here: ${(100 * series.end.at(-1)).toFixed(1)}%`]);
  assert.equal(endSentence(series.trace, series.moments), "The end by step: the end token came at step 49; "
    + "before, its probability was highest at step 8, 2.0%, where it survived and lost the draw.");
});
