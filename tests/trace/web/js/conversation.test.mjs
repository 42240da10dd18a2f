import assert from "node:assert/strict";
import { test } from "node:test";
import {
  branchOf, callText, ending, fillAnswers, hear, messageText, open, openCalls, plain, replaceAnswer, toolsOf,
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
  assert.equal(fillAnswers(said, finder(run(1), run(2, { live: true }))), null);
  assert.equal(fillAnswers(said, finder(run(1))), null);
  assert.equal(fillAnswers(said, finder(run(2, { trace: { text: "" } }))), null);
  const ready = fillAnswers(said, finder(run(1, { trace: { text: "other" } }), run(2)));
  assert.deepEqual(ready.map((message) => message.content), ["one", "text 1", "two", "text 2"]);
  assert.equal(fillAnswers(ready, finder(run(1), run(2))), null);
});

test("a growing answer shows its text so far", () => {
  assert.equal(messageText(said[3], finder(run(2, { live: true, trace: { text: "so f" } }))), "so f");
  assert.equal(messageText(said[3], finder()), "");
  assert.equal(messageText(said[1], finder(run(1, { trace: { text: "again" } }))), "text 1");
});

test("a branch belongs to the answer that it was forked from, at any depth", () => {
  const runs = [run(1), run(2), run(3, { parent: 1 }), run(4, { parent: 3 }), run(5), run(6, { parent: 7 }),
    run(7, { parent: 6 })];
  const at = (id) => branchOf(said, runs, finder(...runs)(id));
  assert.deepEqual([1, 2, 3, 4, 5, 6].map(at), [-1, -1, 1, 1, -1, -1]);
  assert.deepEqual(replaceAnswer(said, 1, runs[3]), [said[0], { role: "assistant", content: "text 4", run: 4 }]);
});

test("how a run ended, in one or two words", () => {
  assert.equal(ending(run(1, { live: true })), "generating …");
  assert.equal(ending(run(1, { error: "x" })), "failed");
  assert.equal(ending(run(1)), "stopped");
  assert.equal(ending(run(1, { trace: { end: { reason: "end_token" } } })), "");
  assert.equal(ending(run(1, { trace: { end: { reason: "max_tokens" } } })), "cut at max_tokens");
});

const call = { id: "c1", name: "get_weather", arguments: '{"city": "Paris"}' };

test("a call arrives in pieces, after the text before it", () => {
  const one = run(1, { live: true });
  hear(one, { content: "Let me see." });
  hear(one, { tool_calls: [{ index: 0, id: "c1", function: { name: "get_weather", arguments: "" } }] });
  hear(one, { tool_calls: [{ index: 0, function: { arguments: '{"city"' } }] });
  assert.equal(callText(one.calls[0]), 'get_weather({"city" …');
  hear(one, { tool_calls: [{ index: 0, function: { arguments: ': "Paris"}' } }] });
  assert.deepEqual(one.calls, [call]);
  assert.equal(callText(call), 'get_weather(city: "Paris")');
  assert.equal(messageText({ role: "assistant", content: "", run: 1 }, finder(one)), "Let me see.");
});

test("an answer with calls is sent as calls, and its results name them", () => {
  const asked = [{ role: "user", content: "?" }, { role: "assistant", content: "", run: 1 }];
  const ready = fillAnswers(asked, finder(run(1, { calls: [call], trace: { text: "<tool_call>" } })));
  assert.equal(fillAnswers(ready, finder(run(1, { calls: [call] }))), null);
  assert.deepEqual(openCalls(ready), [call]);
  const done = [...ready, { role: "tool", content: "rain", result: "c1" }];
  assert.deepEqual(openCalls(done), []);
  assert.deepEqual(open([...done, { role: "assistant", content: "It rains." }]), done);
  const { id, ...what } = call;
  assert.deepEqual(plain(done).slice(1), [
    { role: "assistant", content: "", tool_calls: [{ id, type: "function", function: what }] },
    { role: "tool", content: "rain", tool_call_id: "c1" }]);
});

test("tools are a list, one function, or nothing; else a sentence says what is wrong", () => {
  assert.equal(toolsOf("  "), null);
  assert.deepEqual(toolsOf('{"a": 1}'), [{ a: 1 }]);
  assert.throws(() => toolsOf("[{"), /The tools are not JSON/);
});
