// figures/river.js and drawings/river.js: every mark of the river is a figure of the record.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import { test } from "node:test";
import { layoutOf } from "../../../../src/cutaway/trace/web/js/drawings/places.js";
import { riverDrawing } from "../../../../src/cutaway/trace/web/js/drawings/river.js";
import { formatTokenCount, riverOf, riverSentence } from "../../../../src/cutaway/trace/web/js/figures/river.js";
import { percent, visible } from "../../../../src/cutaway/trace/web/js/figures/numbers.js";
import { Trace } from "../../../../src/cutaway/trace/web/js/state/trace.js";
import { opened } from "./runs.mjs";

const recording = new URL("../../../../src/cutaway/trace/web/first-run.jsonl.gz", import.meta.url);
const traces = [...["chains/biased", "chains/llama.cpp", "chains/penalties", "first", "six", "held", "canvas"].map((name) => opened(`${name}.jsonl`)),
  Trace.parse(gunzipSync(readFileSync(recording)).toString())];
const LOOK = { width: 1000, scale: 1, selected: null, exit: 300 };
const NEAR = 0.01; // pixels: coordinates are rounded

const all = (mark) => (typeof mark === "string" ? [] : [mark, ...mark.children.flatMap(all)]);
const has = (mark, kind) => ` ${mark.attributes.class} `.includes(` ${kind} `);
const of = (marks, kind) => marks.filter((mark) => has(mark, kind));
const near = (got, expected, what) => assert.ok(Math.abs(got - expected) < NEAR, `${what}: ${got}, not ${expected}`);

/** The heights of a band in pixels at its left side, from what the path says of the first column. */
function leftHeight(mark) {
  const { d } = mark.attributes;
  const top = Number(/^M[\d.-]+ ([\d.-]+)/.exec(d)[1]);
  const curves = [...d.matchAll(/C[\d.-]+ [\d.-]+ [\d.-]+ [\d.-]+ [\d.-]+ ([\d.-]+)/g)];
  const bottom = curves.length ? Number(curves.at(-1)[1]) : Number([...d.matchAll(/L[\d.-]+ ([\d.-]+)/g)].at(-1)[1]);
  return bottom - top;
}

/** A drawing of each step, with what it was made of. */
function* drawings(look = LOOK) {
  for (const trace of traces) {
    for (const step of trace.steps) {
      const river = riverOf(trace, step);
      yield { trace, step, river, marks: all(riverDrawing(river, look)), layout: layoutOf(river.gates.length, look.width, look.scale) };
    }
  }
}

test("the bands begin as high as the model's probabilities, which are 1 together", () => {
  for (const { step, river, marks, layout } of drawings()) {
    const bands = of(marks, "band");
    assert.equal(bands.length, step.candidates.length + 1);
    for (const band of bands.filter((one) => "data-id" in one.attributes)) {
      const candidate = step.candidates.find(({ id }) => id === band.attributes["data-id"]);
      near(leftHeight(band) / layout.deep, Math.exp(candidate.logit - step.log_sum_exp), "height");
    }
    near(bands.reduce((sum, band) => sum + leftHeight(band), 0), layout.deep, "all");
    near(river.bands.reduce((sum, { shares }) => sum + shares[0], 0) + river.rests[0].share, 1, "shares");
  }
});

test("what a gate cuts is what its stage removed", () => {
  let [cuts, known] = [0, 0];
  for (const { trace, step, river, marks, layout } of drawings()) {
    const falls = of(marks, "fall");
    const removing = step.stages.flatMap((record, i) => {
      const before = step.stages[i - 1]?.survivors ?? trace.head.vocab_size;
      return before > record.survivors ? [{ ...record, i, tokens: before - record.survivors }] : [];
    });
    assert.equal(falls.length, removing.length);
    falls.forEach((fall, at) => {
      const { removed_mass: mass, tokens, i } = removing[at];
      const inside = all(fall);
      const [tray] = of(inside, "tray");
      const filled = of(inside, "cut").find((mark) => !has(mark, "piece"));
      near(filled.attributes.width / tray.attributes.width, mass, "tray");
      assert.ok(inside.some((mark) => mark.name === "title" && mark.children[0].includes(`${formatTokenCount(tokens)} with ${percent(mass)}`)));
      cuts++;
      if (river.rests[river.gates.findIndex((gate) => gate.at === i)].share === undefined) return;
      known++;
      near(of(inside, "piece").reduce((sum, { attributes }) => sum + attributes.height, 0), mass * layout.deep, "pieces");
    });
  }
  assert.ok(cuts > 100 && known > 100, `${cuts} ${known}`);
});

test("after the last gate the bands have their final probabilities", () => {
  for (const { step, river } of drawings()) {
    for (const { id, shares, cutAt } of river.bands) {
      const { final_logprob: final, removed_by: by } = step.candidates.find((c) => c.id === id);
      assert.equal(cutAt === null ? null : river.gates[cutAt].at, by);
      if (final === null) assert.equal(shares.at(-1), null);
      else near(shares.at(-1), Math.exp(final), "final");
    }
  }
});

test("the winner is the drawn token: its score is the furthest, and its line leaves the drawing", () => {
  let races = 0;
  for (const { trace, step, marks } of drawings()) {
    const scores = of(marks, "race");
    assert.equal(scores.length, step.candidates.filter((c) => c.final_logprob !== null && c.luck !== null).length);
    const xOf = (race) => all(race).find(({ name }) => name === "circle").attributes.cx;
    const winner = scores.find((race) => has(race, "chosen"));
    if (winner) {
      races++;
      assert.equal(winner.attributes["data-id"], step.sampled_id);
      near(xOf(winner), Math.max(...scores.map(xOf)), "score");
    }
    const card = of(marks, "card")[0];
    assert.equal(card.children[0].children[0], visible(trace.nameOf(step.token_id)));
    assert.equal(of(of(marks, "way"), "lost").length, step.token_id === step.sampled_id || !winner ? 0 : 1);
    assert.ok(of(marks, "way").some(({ attributes }) => attributes.d.includes("H300V")));
  }
  assert.ok(races > 100);
});

test("the sentence says what was drawn, and what was cut off", () => {
  for (const { trace, step, river } of drawings()) {
    const sentence = riverSentence(river);
    assert.ok(sentence.includes(visible(trace.nameOf(step.token_id))), sentence);
    for (const { removed_mass: mass } of step.stages) if (mass) assert.ok(sentence.includes(percent(mass)));
  }
});

test("at temperature 0 one band of 100 % is left, and there is no luck", () => {
  const [trace] = traces;
  const greedy = { ...trace, head: { ...trace.head, chain: [], params: { ...trace.head.params, temperature: 0 } }, nameOf: (id) => trace.nameOf(id) };
  for (const step of trace.steps) {
    const likeliest = step.candidates.find(({ rank }) => rank === 1);
    const candidates = step.candidates.map((c) => ({ ...c, luck: null, removed_by: null, final_logprob: c.logit - step.log_sum_exp, delta: 0 }));
    const river = riverOf(greedy, { ...step, source: "greedy", stages: [], candidates, sampled_id: likeliest.id, token_id: likeliest.id });
    assert.deepEqual(river.bands.filter(({ shares }) => shares.at(-1) !== null).map(({ id, shares }) => [id, shares.at(-1)]), [[likeliest.id, 1]]);
    const gate = river.gates.find(({ isGreedy }) => isGreedy);
    assert.equal(gate.label, "temperature 0");
    assert.equal(gate.cut.tokens, trace.head.vocab_size - 1);
    near(gate.cut.share, 1 - river.bands.find(({ isDrawn }) => isDrawn).shares[0], "cut");
    assert.equal(of(all(riverDrawing(river, LOOK)), "race").length, 0);
    assert.match(riverSentence(river), /at temperature 0/);
  }
});

test("every drawing has numbers for coordinates, also on a phone, in large type and with one candidate", () => {
  for (const look of [{ ...LOOK, width: 340 }, { ...LOOK, scale: 1.5 }, { ...LOOK, exit: null, selected: 0 }]) {
    for (const { trace, step, marks } of drawings(look)) {
      const bare = riverOf(trace, { ...step, candidates: step.candidates.filter(({ id }) => id === step.token_id) });
      for (const { attributes } of [...marks, ...all(riverDrawing(bare, look))]) {
        for (const value of Object.values(attributes)) assert.doesNotMatch(String(value), /NaN|undefined|Infinity/);
        for (const size of ["width", "height"]) assert.ok(!(attributes[size] < 0), `${size} ${attributes[size]}`);
      }
    }
  }
});
