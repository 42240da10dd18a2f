import assert from "node:assert/strict";
import { test } from "node:test";
import { Session } from "../../../../src/cutaway/trace/web/js/state/session.js";
import { Store } from "../../../../src/cutaway/trace/web/js/state/store.js";
import { opened, read, streamed } from "./runs.mjs";

globalThis.requestAnimationFrame = (callback) => callback();

const file = (name, text = read(name)) => new File([text], name.split("/").at(-1));

test("the files of a tree become a tree again", async () => {
  const session = new Session(new Store());
  const first = await session.open(file("page/first.jsonl"));
  const six = await session.open(file("page/six.jsonl"));
  assert.deepEqual([first.parent, six.parent, six.at], [null, first.id, 2]);
});

test("a fork whose parent is not open has no parent", async () => {
  const session = new Session(new Store());
  await session.open(file("first.jsonl")); // the same run, but not the file that the fork names
  const six = await session.open(file("page/six.jsonl"));
  assert.deepEqual([six.parent, six.at], [null, 0]);
});

test("a file that is not a trace is an error, and nothing is opened", async () => {
  const store = new Store();
  assert.equal(await new Session(store).open(file("a.jsonl", "{}\n")), null);
  assert.match(store.state.notice, /^a\.jsonl: line 1: /);
  assert.deepEqual(store.state.runs, []);
});

test("a run that is removed leaves nothing, and its number is no other run's", async () => {
  const store = new Store(), session = new Session(store);
  const first = await session.open(file("page/first.jsonl"));
  const six = await session.open(file("page/six.jsonl"));
  store.set({ other: six.id });
  session.insides.keep(`${six.id} 3 null`, { error: "none" });
  session.remove(six);
  assert.deepEqual([store.state.runs.map(({ id }) => id), store.state.run, store.state.other], [[first.id], first.id, null]);
  assert.equal(session.insides.entries.size, 0);
  const again = await session.open(file("page/six.jsonl"));
  assert.deepEqual([again.id, again.parent], [3, first.id]);
  session.remove(first);
  assert.equal((await session.open(file("page/six.jsonl"))).parent, null); // its parent is not open any more
});

test("a recording that comes after the reader's own run leaves the step", async () => {
  const store = new Store(), session = new Session(store);
  await session.open(file("first.jsonl"));
  store.goTo(3);
  await session.openRecording(file("six.jsonl"), false);
  store.arrive();
  assert.deepEqual([store.state.step, store.state.arriving], [3, false]);
});

test("what continues a run has its form, and the KV cache", async () => {
  const store = new Store(), session = new Session(store);
  const run = await session.open(file("held.jsonl"));
  const { params, weights } = run.trace.head;
  params.kv_cache = false;
  params.speculate = "draft:small";
  store.set({ about: { weights, defaults: { json_schema: null, kv_cache: true, speculate: "off", temperature: 1 } } });
  const schema = JSON.parse(params.json_schema);
  assert.deepEqual(session.makeContinuation(run, []).settings,
    { json_schema: schema, speculate: "draft", temperature: 0.7, max_tokens: 32 });
  assert.deepEqual(session.requestOf(run), { kind: "completion", prompt: run.trace.head.prompt, messages: [], forced: [],
    seed: run.trace.head.seed, settings: { json_schema: schema, speculate: "draft", temperature: 0.7, max_tokens: params.max_tokens } });
  store.set({ about: { ...store.state.about, local: { lacks: ["speculate"] } } });
  assert.deepEqual(session.makeContinuation(run, []).settings, { json_schema: schema, temperature: 0.7, max_tokens: 32 });
});

test("what came as records is the file again", () => {
  for (const name of ["page/first.jsonl", "held.jsonl", "canvas.jsonl"]) {
    const records = (trace) => trace.file.trimEnd().split("\n").map((line) => JSON.parse(line));
    assert.deepEqual(records(streamed(name)), records(opened(name)), name);
    assert.equal(opened(name).file, read(name));
  }
});
