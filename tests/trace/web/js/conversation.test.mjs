import assert from "node:assert/strict";
import { test } from "node:test";
import {
  answered, branchOf, ending, open, plain, settled, shown,
} from "../../../../src/cutaway/trace/web/js/state/conversation.js";

const run = (id, more = {}) => ({ id, parent: null, live: false, error: null, ...more,
  trace: { text: `text ${id}`, end: null, ...more.trace } });
const finder = (...runs) => (id) => runs.find((other) => other.id === id) ?? null;
const said = [
  { role: "user", content: "one" }, { role: "assistant", content: "text 1", run: 1 },
  { role: "user", content: "two" }, { role: "assistant", content: "", run: 2 },
];

test("the server gets roles and contents only", () => {
  assert.deepEqual(plain(said.slice(0, 2)), [
    { role: "user", content: "one" }, { role: "assistant", content: "text 1" }]);
});

test("the open part ends with the last question", () => {
  assert.deepEqual(open(said), said.slice(0, 3));
  assert.deepEqual(open([{ role: "system", content: "x" }]), []);
});

test("an answer gets its text once, when its run has ended", () => {
  assert.equal(settled(said, finder(run(1), run(2, { live: true }))), null);
  assert.equal(settled(said, finder(run(1))), null);
  assert.equal(settled(said, finder(run(2, { trace: { text: "" } }))), null);
  const ready = settled(said, finder(run(1, { trace: { text: "other" } }), run(2)));
  assert.deepEqual(ready.map((message) => message.content), ["one", "text 1", "two", "text 2"]);
  assert.equal(settled(ready, finder(run(1), run(2))), null);
});

test("a growing answer shows its text so far", () => {
  assert.equal(shown(said[3], finder(run(2, { live: true, trace: { text: "so f" } }))), "so f");
  assert.equal(shown(said[3], finder()), "");
  assert.equal(shown(said[1], finder(run(1, { trace: { text: "again" } }))), "text 1");
});

test("a branch belongs to the answer that it was forked from, at any depth", () => {
  const runs = [run(1), run(2), run(3, { parent: 1 }), run(4, { parent: 3 }), run(5), run(6, { parent: 7 }),
    run(7, { parent: 6 })];
  const at = (id) => branchOf(said, runs, finder(...runs)(id));
  assert.deepEqual([1, 2, 3, 4, 5, 6].map(at), [-1, -1, 1, 1, -1, -1]);
  assert.deepEqual(answered(said, 1, runs[3]), [said[0], { role: "assistant", content: "text 4", run: 4 }]);
});

test("how a run ended, in one or two words", () => {
  assert.equal(ending(run(1, { live: true })), "generating …");
  assert.equal(ending(run(1, { error: "x" })), "failed");
  assert.equal(ending(run(1)), "stopped");
  assert.equal(ending(run(1, { trace: { end: { reason: "end_token" } } })), "");
  assert.equal(ending(run(1, { trace: { end: { reason: "max_tokens" } } })), "cut at max_tokens");
});
