// The reader's choice of the GPU: kept for later visits where the browser stores something, and never needed.
import assert from "node:assert/strict";
import { test } from "node:test";
import { LocalModel } from "../../../../src/cutaway/trace/web/js/local/model.js";
import { defineGlobal } from "./globals.mjs";

/** The thread that computes: it takes each change of the device, and says so. */
class Thread {
  constructor() {
    sent = [];
    queueMicrotask(() => this.onmessage({ data: { loaded: true } }));
  }

  postMessage(message) {
    sent.push(message);
    if (message.ask === undefined) return;
    queueMicrotask(() => {
      this.onmessage({ data: { device: { gpu: message.useGpu ? "acme" : null } } });
      this.onmessage({ data: { id: message.ask, done: true } });
    });
  }
}

let sent = [];
function visit() {
  return new LocalModel("model", { weights: 0, files: [] }, () => {});
}

const insists = () => sent.find(({ load }) => load).insists;

function browse(t, /** @type {PropertyDescriptor} */ localStorage) {
  defineGlobal(t, "localStorage", localStorage);
  defineGlobal(t, "Worker", { value: Thread });
}

test("a choice of the GPU holds for later visits, until the processor is chosen", async (t) => {
  const kept = new Map();
  browse(t, { value: { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value), removeItem: (key) => kept.delete(key) } });
  const model = visit();
  assert.equal(insists(), false);
  await model.useGpu();
  await visit().useProcessor();
  assert.equal(insists(), true);
  visit();
  assert.equal(insists(), false);
});

test("without storage the model loads, and both devices can be chosen", async (t) => {
  browse(t, { get: () => { throw new DOMException("The document is sandboxed", "SecurityError"); } });
  const model = visit();
  assert.equal(insists(), false);
  await model.useGpu();
  assert.equal(model.device.gpu, "acme");
  await model.useProcessor();
  assert.equal(model.device.gpu, null);
});
