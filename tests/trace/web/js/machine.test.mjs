// figures/machine.js: the stations of the machine with the figures of a step, from the record alone.

import assert from "node:assert/strict";
import { test } from "node:test";
import { gloss } from "../../../../src/cutaway/trace/web/js/figures/catalogue.js";
import { allFigures, stations } from "../../../../src/cutaway/trace/web/js/figures/machine.js";
import { stepView } from "../../../../src/cutaway/trace/web/js/figures/step-view.js";
import { opened } from "./runs.mjs";

const SIZES = { layers: 30, heads: 9, kv_heads: 3, hidden: 576, mlp: 1536, experts: 0, experts_used: 0 };
const words = ({ figures }) => figures.map((figure) =>
  figure.words.map((word) => (typeof word === "string" ? word : `[${word.token}]`)).join(""));
const at = (all, id) => all.find((station) => station.id === id);

const trace = opened("chains/llama.cpp.jsonl");
const [first, second] = trace.steps;

test("the stations stand in the order in which a token passes them", () => {
  assert.deepEqual(stations(trace, first, null).map(({ id }) => id),
    ["tokens", "embedding", "layers", "logits", "chain", "luck", "token"]);
});

test("the figures are those of the step", () => {
  const all = stations(trace, second, null);
  assert.equal(words(at(all, "tokens"))[0], `${second.position} so far`);
  assert.equal(words(at(all, "tokens"))[1], `last [${trace.nameOf(first.token_id)}]`);
  assert.ok(words(at(all, "token")).includes(`rank ${second.rank}`));
  assert.equal(at(all, "chain").figures.length, trace.head.chain.length);
  assert.deepEqual(words(at(all, "chain")), second.stages.map(({ survivors }) => survivors.toLocaleString("en-US")));
});

test("sizes are shown where the record has them", () => {
  const bare = stations(trace, first, null);
  assert.equal(at(bare, "layers").name, "layers");
  assert.ok(!words(at(bare, "layers")).some((text) => text.includes("heads")));
  const sized = { ...trace, head: { ...trace.head, sizes: SIZES }, nameOf: (id) => trace.nameOf(id) };
  const all = stations(sized, first, null);
  assert.equal(at(all, "layers").name, "30 layers");
  assert.ok(words(at(all, "layers")).includes("9 heads"));
  assert.match(at(all, "embedding").caption, /576 numbers/);
});

test("the winner of the race ends at the highest score", () => {
  for (const step of trace.steps) {
    const { race } = at(stations(trace, step, null), "luck").picture;
    for (const share of race.flat()) assert.ok(share >= 0 && share <= 1);
    if (race.length) assert.equal(race[0][1], Math.max(...race.map(([, to]) => to)));
  }
});

test("a forced token won no race", () => {
  const station = at(stations(trace, { ...second, source: "forced" }, null), "luck");
  assert.deepEqual(words(station), ["not drawn"]);
  assert.deepEqual(station.picture, {});
});

test("the layer from which on the lens agrees is shown once it is known", () => {
  const inside = { layers: 30, value: (name) => (name === "lens_settled" ? 28 : null) };
  assert.ok(words(at(stations(trace, first, inside), "layers")).includes("settled after layer 27"));
  assert.ok(!words(at(stations(trace, first, null), "layers")).some((text) => text.includes("settled")));
});

test("before the first step the machine has no figures of one", () => {
  const all = stations(trace, undefined, null);
  assert.equal(all.length, 7);
  assert.deepEqual(words(at(all, "token")), []);
  assert.deepEqual(words(at(all, "luck")), []);
});

test("every figure has a gloss", () => {
  for (const step of trace.steps) {
    const shown = stations(trace, step, null).flatMap(({ figures }) => figures);
    for (const { gloss: meaning } of shown) assert.ok(meaning.length > 15, meaning);
    for (const [name] of allFigures(stepView(trace, step))) assert.ok(gloss(name).length > 15, name);
  }
  assert.throws(() => gloss("a name that no table has"));
});
