import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { exportRun, exportRuns } from "../../../../src/cutaway/trace/web/js/state/export.js";
import { Trace, lineOf } from "../../../../src/cutaway/trace/web/js/state/trace.js";
import { opened, pair, read, run } from "./runs.mjs";

const NAMES = ["page/first.jsonl", "page/six.jsonl"];
const text = (bytes) => new TextDecoder().decode(bytes);

test("a tree is saved line by line as it was recorded", async () => {
  const files = await exportRuns(pair());
  for (const [i, { bytes }] of files.entries()) {
    const [mine, theirs] = [text(bytes), read(["first.jsonl", "six.jsonl"][i])].map((file) =>
      file.trimEnd().split("\n").map((line) => ({ ...JSON.parse(line), parent: null })));
    assert.deepEqual(mine, theirs);
  }
  assert.deepEqual(files.map(({ name }) => name), ["run-1.jsonl", "run-2.jsonl"]);
});

test("each fork names its parent's hash", async () => {
  const [first, six] = pair();
  const deeper = { ...six, id: 3, parent: 2, at: 4 };
  const files = await exportRuns([first, six, deeper]);
  const parents = files.map(({ bytes }) => Trace.parse(text(bytes)).head.parent);
  const hashes = files.map(({ bytes }) => createHash("sha256").update(bytes).digest("hex"));
  assert.deepEqual(files.map(({ sha256 }) => sha256), hashes);
  assert.deepEqual(parents.map((parent) => parent?.trace), [undefined, hashes[0], hashes[1]]);
  assert.equal(parents[2].token_id, six.trace.steps[4].token_id);
});

test("a run saved alone is the same file", async () => {
  const runs = pair();
  const [, whole] = await exportRuns(runs);
  const alone = await exportRun(runs, runs[1]);
  assert.deepEqual([alone.name, text(alone.bytes)], [whole.name, text(whole.bytes)]);
});

test("an opened file is saved unchanged", async () => {
  const trace = opened("first.jsonl");
  const [file] = await exportRuns([run(1, { trace, request: null, name: "a.run.jsonl.gz" })]);
  assert.equal(text(file.bytes), read("first.jsonl"));
  assert.equal(file.name, "a.run.jsonl");
});

test("an opened fork is saved unchanged, also with its parent", async () => {
  const [first, six] = NAMES.map((name, i) =>
    run(i + 1, { trace: opened(name), request: null, name: `${i}.jsonl`, parent: i || null, at: i * 2 }));
  const spaced = six.trace.lines[0].replace('"kind"', ' "kind"');
  six.trace.lines[0] = spaced;
  const [, { bytes }] = await exportRuns([first, six]);
  assert.equal(text(bytes).split("\n")[0], spaced);
});

test("a seed keeps its 64 bits", () => {
  assert.equal(lineOf({ seed: "18446744073709551615", text: '"seed":"5"' }),
    '{"seed":18446744073709551615,"text":"\\"seed\\":\\"5\\""}');
});
