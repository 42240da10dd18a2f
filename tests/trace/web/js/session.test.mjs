import assert from "node:assert/strict";
import { test } from "node:test";
import { Session } from "../../../../src/cutaway/trace/web/js/state/session.js";
import { Store } from "../../../../src/cutaway/trace/web/js/state/store.js";
import { read } from "./runs.mjs";

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
