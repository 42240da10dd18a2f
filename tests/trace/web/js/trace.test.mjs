// state/trace.js: a file that is read in slices is the file that is read at once.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Trace } from "../../../../src/cutaway/trace/web/js/state/trace.js";
import { read } from "./runs.mjs";

test("a long file is read in slices, and says how far it is", async (context) => {
  let now = 0;
  context.mock.method(performance, "now", () => (now += 7)); // each line takes 7 ms
  const [text, pauses] = [read("first.jsonl"), []];
  const trace = await Trace.read(text, async (share, growing) => void pauses.push([share, growing.lines.length]));
  assert.equal(trace.file, text);
  assert.deepEqual(trace.steps, Trace.parse(text).steps);
  assert.ok(pauses.length > trace.lines.length / 5 && pauses.length < trace.lines.length / 2);
  pauses.forEach(([share, lines], i) => assert.ok(share <= 1 && (i === 0 || (share > pauses[i - 1][0] && lines > pauses[i - 1][1]))));
});

test("what is wrong has the number of its line in slices, too", async () => {
  const [head] = read("first.jsonl").split("\n", 1);
  await assert.rejects(Trace.read(`${head}\n{\n`, async () => {}), /line 2 is not JSON/);
  await assert.rejects(Trace.read("", async () => {}), /no complete line/);
  assert.equal((await Trace.read(`${head}\n{"kind":`, async () => {})).lines.length, 1); // an aborted run's
});
