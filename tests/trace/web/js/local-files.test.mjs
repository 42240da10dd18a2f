// Weights between visits: fetched once where the browser keeps them, again where it does not, and never used damaged.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { Folder } from "../../../../src/cutaway/trace/web/js/local/files.js";
import { defineGlobal } from "./globals.mjs";

const BYTES = new Uint8Array([1, 2, 3, 4]);
const PART = { name: "weights-000.bin", bytes: BYTES.length, sha256: createHash("sha256").update(BYTES).digest("hex") };

/** A browser's storage; without room it refuses to keep. */
function storageOf({ hasRoom = true } = {}) {
  const kept = new Map();
  return { kept, open: async () => ({
    match: async (address) => kept.get(address)?.clone(),
    delete: async (address) => kept.delete(address),
    put: async (address, answer) => {
      if (!hasRoom) throw new DOMException("there is no more room", "QuotaExceededError");
      kept.set(address, answer);
    },
  }) };
}

/** @returns the bytes that two visits use, and how often the part was fetched */
async function visitTwice(t, caches) {
  const used = [];
  let fetched = 0;
  defineGlobal(t, "caches", { value: caches });
  defineGlobal(t, "fetch", { value: async () => (fetched += 1, new Response(BYTES)) });
  defineGlobal(t, "location", { value: { href: "http://127.0.0.1/" } });
  for (let visit = 0; visit < 2; visit++) await new Folder("model", []).eachPart([PART], (bytes) => used.push([...bytes]));
  return [used, fetched];
}

const SAME = [[...BYTES], [...BYTES]];

test("a second visit fetches nothing", async (t) => assert.deepEqual(await visitTwice(t, storageOf()), [SAME, 1]));

test("without room, or without leave to keep anything, each visit fetches", async (t) => {
  assert.deepEqual(await visitTwice(t, storageOf({ hasRoom: false })), [SAME, 2]);
  assert.deepEqual(await visitTwice(t, { open: async () => { throw new DOMException("denied", "SecurityError"); } }), [SAME, 2]);
});

test("a damaged copy is fetched again, and kept in its place", async (t) => {
  const storage = storageOf();
  await visitTwice(t, storage);
  for (const address of storage.kept.keys()) storage.kept.set(address, new Response(new Uint8Array(4)));
  assert.deepEqual(await visitTwice(t, storage), [SAME, 1]);
});
