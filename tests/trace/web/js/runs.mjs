// Runs as the page has them, from the traces that lie in data/; page/first.jsonl and page/six.jsonl
// are the same as the page saves them.

import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import { exportRuns } from "../../../../src/cutaway/trace/web/js/state/export.js";
import { Trace, recordOf } from "../../../../src/cutaway/trace/web/js/state/trace.js";

export const read = (name) =>
  saved.get(name) ?? readFileSync(new URL(`../data/${name}`, import.meta.url), "utf8");

/** @type {Map<string, string>} */
const saved = new Map();

/** As the server's stream brings it: records, no lines. */
export function streamed(name) {
  const trace = new Trace();
  for (const line of read(name).trimEnd().split("\n")) trace.keep(recordOf(line));
  return trace;
}

/** As a file brings it. */
export const opened = (name) => Trace.parse(read(name));

export const request = (prompt, forced = []) =>
  ({ kind: "completion", prompt, messages: [], settings: {}, seed: null, forced });

export const run = (id, more = {}) => ({ id, trace: new Trace(), request: request("One, two,"),
  parent: null, at: 0, live: false, name: "", error: null, ...more });

/** The first run and its fork. */
export function pair() {
  const first = run(1, { trace: streamed("first.jsonl") });
  const trace = streamed("six.jsonl");
  const forced = trace.outputIds.slice(0, 3);
  const six = run(2, { trace, parent: 1, at: 2, name: " six at 2", request: request([1], forced) });
  return [first, six];
}

for (const [i, { bytes }] of (await exportRuns(pair())).entries()) {
  saved.set(["page/first.jsonl", "page/six.jsonl"][i], new TextDecoder().decode(bytes));
}

/** The recording of the package. */
export const recording = () => Trace.parse(gunzipSync(readFileSync(
  new URL("../../../../src/cutaway/trace/web/first-run.jsonl.gz", import.meta.url))).toString("utf8"));
