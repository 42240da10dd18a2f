// What the server streams, and the error when the stream breaks.

import assert from "node:assert/strict";
import test from "node:test";
import { ApiError, ask, key, records, setKey } from "../../../../src/cutaway/trace/web/js/state/api.js";
import { defineGlobal } from "./globals.mjs";
import { request } from "./runs.mjs";

const event = (found) => `data: ${JSON.stringify({ choices: [{ cutaway: { trace: found } }] })}\n\n`;

/** A server that, for this test, sends these parts and then ends, or breaks off. */
function serve(t, parts, broken) {
  defineGlobal(t, "sessionStorage", { value: { getItem: () => null } });
  defineGlobal(t, "fetch", { value: async () => new Response(new ReadableStream({
    pull(stream) {
      const part = parts.shift();
      if (part !== undefined) stream.enqueue(new TextEncoder().encode(part));
      else if (broken) stream.error(new TypeError("network error"));
      else stream.close();
    },
  })) });
}

/** @returns {Promise<any[]>} all records, however they are cut */
async function read() {
  const all = [];
  for await (const news of records(request("a"), new AbortController().signal)) all.push(...news);
  return all;
}

test("records arrive unchanged, however the stream is cut", async (t) => {
  const whole = event([{ a: 1 }]) + event([{ b: 2 }, { c: "ü" }]) + "data: [DONE]\n\n";
  serve(t, [whole.slice(0, 20), whole.slice(20, 70), whole.slice(70)], false);
  assert.deepEqual(await read(), [{ a: 1 }, { b: 2 }, { c: "ü" }]);
});

test("a broken stream is an error with a sentence", async (t) => {
  serve(t, [event([{ a: 1 }])], true);
  await assert.rejects(read(), (error) => error instanceof ApiError && /broke off/.test(error.message));
});

test("what is asked is below the page's own address", async (t) => {
  const asked = [];
  serve(t, [], false);
  defineGlobal(t, "fetch", { value: async (path) => asked.push(path) && Response.json({}) });
  await ask("/tokenize", { prompt: "a" });
  assert.deepEqual(asked.map((path) => new URL(path, "http://proxy/a/models/?model=b#c").href), ["http://proxy/a/models/tokenize"]);
});

test("a key holds as long as the page is open where the browser blocks storage", (t) => {
  defineGlobal(t, "sessionStorage", { get: () => { throw new DOMException("The document is sandboxed", "SecurityError"); } });
  assert.equal(key(), "");
  setKey(" secret\n");
  assert.equal(key(), "secret");
  setKey("");
  assert.equal(key(), "");
});
