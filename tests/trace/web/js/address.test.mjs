import assert from "node:assert/strict";
import { test } from "node:test";
import { ADDRESS_FIELDS, readAddress } from "../../../../src/cutaway/trace/web/js/state/address.js";
import { Store } from "../../../../src/cutaway/trace/web/js/state/store.js";

globalThis.requestAnimationFrame = (callback) => callback();

/** @param {Record<string, unknown>} fields */
const fragment = (fields) =>
  new URLSearchParams(Object.entries(fields).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)])).toString();

const REQUEST = { kind: "completion", prompt: "a", messages: [], settings: { temperature: 0.5, stop: ["\n"] }, seed: "5", forced: [1, 2] };
const RUN = { id: 1, request: REQUEST, parent: null, at: 0, name: "a" };
const GOOD = {
  run: 2, step: 3, candidate: 1, pass: 4, other: 1, panel: "timelines", lesson: "stop", kind: "typing", tools: "[]", mustCall: true,
  inside: { by: "attribution", map: "sink", head: [3, 2], part: "L0.attn" }, whatIf: { temperature: 2 }, draft: "d", prompt: "p",
  messages: [
    { role: "user", content: "Hi" },
    { role: "assistant", content: "", run: 1, calls: [{ id: "c", name: "f", arguments: "{" }] },
    { role: "tool", content: "5", result: "c" },
  ],
  settings: { temperature: "0,5", chain: ["top_k"], denoise: { steps: 4 } }, seed: "7", typing: 1, price: { input: 0.5, output: 2 }, large: true,
};

test("what the page writes is read as it was", () => {
  const chat = { ...REQUEST, kind: "chat", messages: [{ role: "user", content: "Hi", tool_calls: [{ id: "c" }], tool_call_id: "c" }] };
  const runs = [RUN, { id: 4, request: { ...chat, prompt: [1, 2], seed: null }, parent: 1, at: 2, name: "b" }];
  assert.deepEqual(readAddress(fragment({ ...GOOD, runs })), { fields: GOOD, runs });
  assert.deepEqual([...ADDRESS_FIELDS].sort(), Object.keys(GOOD).sort());
});

test("of runs that are none, nothing is left", () => {
  for (const runs of [[null], [{}], [1, 2], 5, {}, "x", [[]], [{ ...RUN, request: null }], [{ ...RUN, id: -1 }], [{ ...RUN, at: 1.5 }]]) {
    assert.deepEqual(readAddress(fragment({ runs })).runs, []);
  }
});

test("a run is read once, and its parent is one before it", () => {
  const run = (id, parent) => ({ ...RUN, id, parent });
  const { runs } = readAddress(fragment({ runs: [run(1, 1), run(2, 3), run(3, 2), run(3, 1), run(4, 9)] }));
  assert.deepEqual(runs.map(({ id, parent }) => [id, parent]), [[1, null], [2, null], [3, 2], [4, null]]);
});

test("a field of another form is as if it were not there", () => {
  const bad = {
    run: [-1, 1.5, "x", null], step: [1e300, {}], panel: ["nope", "__proto__"], kind: ["", "x"], messages: [5, [5], [{ role: "x", content: "" }]],
    settings: ["x", 5, [1], null], inside: [5, { by: "weight" }, { ...GOOD.inside, head: [1] }], whatIf: [[], { temperature: "x" }],
    price: [5, { input: 1 }], large: ["yes", 1], typing: ["x"], other: [-2],
  };
  for (const [name, values] of Object.entries(bad)) {
    for (const value of values) assert.deepEqual(readAddress(fragment({ [name]: value })).fields, {}, `${name} ${JSON.stringify(value)}`);
  }
  assert.deepEqual(readAddress("settings=%7B&runs=%5B&step=&=&%%%").fields, {});
  assert.deepEqual(readAddress(fragment({ settings: { stop: "x", chain: 5 } })).fields, { settings: { stop: ["x"] } });
});

/** @param {() => number} random @param {number} depth @returns {unknown} */
function randomJson(random, depth) {
  const pick = (all) => all[Math.floor(random() * all.length)];
  const plain = [null, true, false, 0, -1, 1, 2.5, 1e21, "", "x", "user", "chat", "completion", "weight", "attribution", "🙂", "__proto__", "constructor"];
  if (depth === 0 || random() < 0.3) return pick(plain);
  const count = Math.floor(random() * 4);
  const names = ["id", "request", "parent", "at", "name", "kind", "prompt", "messages", "settings", "seed", "forced", "role", "content", "run",
    "calls", "by", "map", "head", "part", "input", "output", "stop", "chain", "__proto__", "toString"];
  if (random() < 0.5) return Array.from({ length: count }, () => randomJson(random, depth - 1));
  return JSON.parse(`{${Array.from({ length: 2 * count }, () => `${JSON.stringify(pick(names))}: ${JSON.stringify(randomJson(random, depth - 1))}`).join()}}`);
}

/** @param {number} seed @returns {() => number} */
function generator(seed) {
  let state = seed;
  return () => ((state = (state * 1103515245 + 12345) % 2 ** 31) / 2 ** 31);
}

/** @param {any} value @param {() => number} random @returns {any} with one part of it replaced */
function mutated(value, random) {
  if (value === null || typeof value !== "object" || random() < 0.2) return randomJson(random, 2);
  const copy = structuredClone(value), names = Object.keys(copy);
  if (!names.length) return randomJson(random, 2);
  const name = names[Math.floor(random() * names.length)];
  if (random() < 0.2) delete copy[name];
  else copy[name] = mutated(copy[name], random);
  return Array.isArray(copy) ? copy.filter(() => true) : copy;
}

test("whatever stands in an address, what is read is in the page's form: read again, it is the same", () => {
  const random = generator(7);
  let kept = 0;
  for (let i = 0; i < 4_000; i++) {
    const whole = { ...GOOD, runs: [RUN, { ...RUN, id: 2, parent: 1 }] };
    const { fields, runs } = readAddress(fragment(random() < 0.7 ? mutated(whole, random) ?? {} : { [Object.keys(whole)[i % 21]]: randomJson(random, 4) }));
    kept += Object.keys(fields).length;
    assert.deepEqual(readAddress(fragment({ ...fields, runs })), { fields, runs });
    const store = new Store();
    assert.deepEqual(store.restore(fragment({ ...fields, runs })), runs);
    for (const { id, parent, at, request } of runs) {
      assert.ok(id > 0 && at >= 0 && (parent === null || parent < id || runs.some((run) => run.id === parent)));
      assert.ok(Array.isArray(request.forced) && typeof request.settings === "object");
    }
    assert.doesNotThrow(() => store.address);
  }
  assert.ok(kept > 20_000);
});
