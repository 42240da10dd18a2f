// figures/leading.js and drawings/share.js: what a phone's sheet has of a step.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import { test } from "node:test";
import { shareBar } from "../../../../src/cutaway/trace/web/js/drawings/share.js";
import { leading } from "../../../../src/cutaway/trace/web/js/figures/leading.js";
import { stepView } from "../../../../src/cutaway/trace/web/js/figures/step-view.js";
import { Trace } from "../../../../src/cutaway/trace/web/js/state/trace.js";

const recording = new URL("../../../../src/cutaway/trace/web/first-run.jsonl.gz", import.meta.url);
const trace = Trace.parse(gunzipSync(readFileSync(recording)).toString());

test("the likeliest five, the text's token among them, at their places in the record", () => {
  for (const step of trace.steps) {
    const view = stepView(trace, step), five = leading(view, 5);
    assert.equal(five.length, 5);
    assert.ok(five.some(({ chosen }) => chosen));
    for (const { at, id } of five) assert.equal(step.candidates[at].id, id);
    const rest = view.candidates.filter(({ id }) => !five.some((one) => one.id === id));
    const least = Math.min(...five.filter(({ chosen }) => !chosen).map(({ final }) => final ?? 0));
    assert.ok(rest.every(({ final }) => (final ?? 0) <= least));
  }
});

test("a bar is as wide as its share of the whole", () => {
  for (const { final, chosen } of leading(stepView(trace, trace.steps[23]), 5)) {
    const [whole, bar] = shareBar(final ?? 0, chosen).children;
    assert.equal(bar.attributes.width / whole.attributes.width, final ?? 0);
    assert.equal(bar.attributes.class, chosen ? "chosen" : "measured");
  }
});
