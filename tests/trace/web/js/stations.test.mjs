// figures/stations.js: the stations with the figures of a step in words, from the record alone.

import assert from "node:assert/strict";
import { test } from "node:test";
import { gloss } from "../../../../src/cutaway/trace/web/js/figures/catalogue.js";
import { allFigures, stations } from "../../../../src/cutaway/trace/web/js/figures/stations.js";
import { stepView } from "../../../../src/cutaway/trace/web/js/figures/step-view.js";
import { opened } from "./runs.mjs";

const SIZES = { layers: 30, heads: 9, kv_heads: 3, hidden: 576, mlp: 1536, experts: 0, experts_used: 0 };
const at = (all, id) => all.find((station) => station.id === id);

const trace = opened("chains/llama.cpp.jsonl");
const [first, second] = trace.steps;

test("the stations stand in the order in which a token passes them", () => {
  assert.deepEqual(stations(trace, first, null).map(({ id }) => id),
    ["tokens", "embedding", "layers", "logits", "chain", "luck", "token"]);
});

test("the figures are those of the step", () => {
  const all = stations(trace, second, null);
  assert.equal(at(all, "tokens").figures[0], `${second.position} so far`);
  assert.match(at(all, "tokens").figures[1], new RegExp(trace.nameOf(first.token_id).trim()));
  assert.ok(at(all, "token").figures.includes(`rank ${second.rank}`));
  assert.deepEqual(at(all, "chain").figures.map((figure) => figure.split(" left ")[1]),
    second.stages.map(({ survivors }) => survivors.toLocaleString("en-US")));
});

test("sizes are shown where the record has them", () => {
  const bare = stations(trace, first, null);
  assert.equal(at(bare, "layers").name, "layers");
  assert.ok(!at(bare, "layers").figures.some((text) => text.includes("heads")));
  const sized = { ...trace, head: { ...trace.head, sizes: SIZES }, nameOf: (id) => trace.nameOf(id) };
  const all = stations(sized, first, null);
  assert.equal(at(all, "layers").name, "30 layers");
  assert.ok(at(all, "layers").figures.includes("9 heads"));
  assert.match(at(all, "embedding").caption, /576 numbers/);
});

test("a forced token won no race", () => {
  const station = at(stations(trace, { ...second, source: "forced" }, null), "luck");
  assert.deepEqual(station.figures, []);
  assert.match(station.caption, /forced/);
});

test("the layer from which on the lens agrees is shown once it is known", () => {
  const inside = { layers: 30, value: (name) => (name === "lens_settled" ? 28 : null) };
  assert.ok(at(stations(trace, first, inside), "layers").figures.includes("settled after layer 27"));
  assert.ok(!at(stations(trace, first, null), "layers").figures.some((text) => text.includes("settled")));
  const looped = { layers: 30, value: (name) => (name === "lens_settled" ? 28 : Array.from({ length: 30 }, (_, i) => [i % 15, 1 + Math.floor(i / 15)])) };
  assert.ok(at(stations(trace, first, looped), "layers").figures.includes("settled after layer 12 in its run 2, L27"));
});

test("before the first step the stations have no figures of one", () => {
  const all = stations(trace, undefined, null);
  assert.equal(all.length, 7);
  assert.deepEqual(at(all, "token").figures, []);
  assert.deepEqual(at(all, "luck").figures, []);
});

test("every figure of a step has a gloss", () => {
  for (const step of trace.steps) {
    for (const [name] of allFigures(stepView(trace, step))) assert.ok(gloss(name).length > 15, name);
  }
  assert.throws(() => gloss("a name that no table has"));
});

test("a canvas's cells hold a mask, or noise", () => {
  for (const [file, empty, word] of [["canvas.jsonl", "a mask", "masked"], ["noise.jsonl", "noise, a random one", "noise"]]) {
    const canvas = opened(file);
    const { caption, figures } = at(stations(canvas, null, null, canvas.passes[0]), "tokens");
    assert.match(caption, new RegExp(`hold ${empty}\\.`));
    assert.match(figures[1], new RegExp(`^\\d+ ${word}$`));
  }
});
