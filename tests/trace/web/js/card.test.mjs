// figures/card.js and drawings/card.js: a picture has the text, its surprise, the step's river and where the text comes from.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import { test } from "node:test";
import { SIZE, cardDrawing } from "../../../../src/cutaway/trace/web/js/drawings/card.js";
import { riverDrawing } from "../../../../src/cutaway/trace/web/js/drawings/river.js";
import { cardOf } from "../../../../src/cutaway/trace/web/js/figures/card.js";
import { bits, surpriseColour } from "../../../../src/cutaway/trace/web/js/figures/numbers.js";
import { Trace } from "../../../../src/cutaway/trace/web/js/state/trace.js";
import { opened } from "./runs.mjs";

const recording = new URL("../../../../src/cutaway/trace/web/first-run.jsonl.gz", import.meta.url);
const first = Trace.parse(gunzipSync(readFileSync(recording)).toString());
const traces = [first, ...["chains/penalties", "first", "six"].map((name) => opened(`${name}.jsonl`))];

const of = (card, kind) => card.children.filter(({ attributes }) => ` ${attributes.class} `.includes(` ${kind} `));
const words = (marks) => marks.map(({ children }) => children.join(""));

test("the text of the recording, each token under its surprise, the chosen one framed", () => {
  const step = first.steps[23];
  const card = cardDrawing(cardOf(first, step), 1);
  const shown = words(of(card, "word")).join("");
  assert.equal(shown, (first.head.prompt + first.steps.map(({ token_id: id }) => first.nameOf(id)).join("")).replaceAll(/\s/g, ""));
  assert.deepEqual(of(card, "tint").map(({ attributes }) => attributes.style.fill), first.steps.map(({ logprob }) => surpriseColour(bits(logprob))));
  assert.deepEqual(of(card, "tint").map(({ attributes }) => attributes.class.includes("chosen")), first.steps.map((one) => one === step));
});

test("the river of the step, why its token won, and from what the text comes again", () => {
  for (const trace of traces) {
    for (const step of trace.steps) {
      const facts = cardOf(trace, step), card = cardDrawing(facts, 1);
      const look = { width: 700, scale: 1, selected: null, exit: null };
      assert.deepEqual(of(card, "flow")[0].children, riverDrawing(facts.river, look).children);
      assert.ok(facts.sentence.startsWith(words(of(card, "sentence")).join(" ")));
      const [imprint] = words(of(card, "imprint"));
      for (const figure of [trace.head.model, `seed ${trace.head.seed}`, (trace.end ?? step).fingerprint]) assert.ok(imprint.includes(figure));
    }
  }
});

test("every line of the text stays in the picture, with the chosen token", () => {
  for (const trace of traces) {
    for (const step of trace.steps) {
      const card = cardDrawing(cardOf(trace, step), 1);
      assert.equal(of(card, "tint").filter(({ attributes }) => attributes.class.includes("chosen")).length >= 1, true);
      for (const { attributes: { x, y, width } } of of(card, "tint")) {
        assert.ok(x >= 0 && x + width <= SIZE.width && y > 0 && y < 214, `${x} ${y} ${width}`);
      }
    }
  }
});
