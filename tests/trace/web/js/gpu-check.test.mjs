// How far a GPU is checked before it computes: in proportion to what it takes for a token, and never as if it was checked further.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mock, test } from "node:test";
import { Declined, limitTime } from "../../../../src/cutaway/trace/web/js/local/gpu/device.js";
import { GpuModel } from "../../../../src/cutaway/trace/web/js/local/gpu/model.js";
import { defineGlobal } from "./globals.mjs";

const CHUNK = 256, SIZES = [1, 2, 4, 8, 40, CHUNK + 5], ALL = SIZES.length;
const MB = 1e6;
let now = 0; // seconds
mock.method(performance, "now", () => 1e3 * now);

/** A model whose logits are the count of its tokens, and which takes so many seconds for each. */
function modelOf(perToken, { weights = 0, right = () => true } = {}) {
  const hash = (count) => createHash("sha256").update(new Float32Array([right(count) ? count : -1])).digest("hex");
  const texts = SIZES.map((count) => ({ tokens: Array(count).fill(0), sha256: hash(count) }));
  const program = { texts_to_check: texts, rows: 64, few_rows: 8, chunk: CHUNK, weights: [[0, [[0, 0, weights]]]] };
  const recording = { document: program, device: { lost: new Promise(() => {}) } };
  const model = new GpuModel(recording, { name: "acme", way: "int", flushes: false, key: "key" }, () => new Float32Array());
  model.run = async (tokens, first) => {
    now += perToken * tokens.length;
    return new Float32Array([first + tokens.length]);
  };
  return model;
}

const check = (model, declines) => model.check({ declines, seconds: 10 }, () => {});

test("a fast GPU computes all texts, and may do all", async () => {
  const model = modelOf(0.01);
  await check(model, true);
  assert.deepEqual([model.checked, model.rows, model.longest], [ALL, 64, Infinity]);
});

test("a GPU that is slower than a processor is declined after one token; a larger model may take longer for it", async () => {
  await assert.rejects(check(modelOf(0.2), true), (error) => error instanceof Declined && /the GPU acme takes 0.20 s for a token/.test(error.message));
  const large = modelOf(0.1, { weights: 150 * MB });
  await check(large, true);
  assert.deepEqual([large.checked, large.rows, large.longest], [5, 64, CHUNK]); // 261 tokens would take 26 s
});

test("a slow GPU that is used all the same computes only what it was checked with", async () => {
  const model = modelOf(1);
  await check(model, false);
  assert.deepEqual([model.checked, model.rows, model.longest], [3, 4, CHUNK]);
  const stages = [];
  await model.checkAll((stage) => stages.push(stage));
  assert.deepEqual(stages, SIZES.map((_, right) => `${right} of ${ALL} texts had the bits of a processor`));
  assert.deepEqual([model.checked, model.rows, model.longest], [ALL, 64, Infinity]);
});

test("a later visit computes the shortest text, and those for which there was no time before", async (t) => {
  const kept = new Map(), storage = { match: async (key) => kept.get(key)?.clone(), delete: async (key) => kept.delete(key),
    put: async (key, answer) => kept.set(key, answer) };
  defineGlobal(t, "caches", { value: { open: async () => storage } });
  defineGlobal(t, "location", { value: { href: "http://127.0.0.1/" } });
  const counts = [];
  for (const perToken of [1, 0.1, 0.01, 0.01]) {
    const model = modelOf(perToken), before = now;
    await check(model, false);
    counts.push([model.checked, Math.round((now - before) / perToken)]);
  }
  assert.deepEqual(counts, [[3, 1 + 2 + 4], [5, 1 + 8 + 40], [ALL, 1 + CHUNK + 5], [ALL, 1]]);
  await assert.rejects(check(modelOf(0.01, { right: (count) => count !== 1 }), false), /other bits/);
  assert.equal(kept.size, 0); // so that all are computed again
});

test("a text with other bits is an error, whoever insists", async () => {
  for (const wrong of [1, 4, CHUNK + 5]) {
    await assert.rejects(check(modelOf(0.001, { right: (count) => count !== wrong }), false), (error) =>
      !(error instanceof Declined) && error.message === `it computes other bits than the CPU in a text of ${wrong} tokens`);
  }
});

test("what takes longer than its time is declined", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const late = limitTime(new Promise(() => {}), 20, () => "5 of 23 kernels are compiled");
  mock.timers.tick(20_000);
  await assert.rejects(late, (error) => error instanceof Declined && error.message === "5 of 23 kernels are compiled");
  assert.equal(await limitTime(Promise.resolve(3), 20, () => "late"), 3);
  mock.timers.reset();
});
