// What a page asks of a GPU: no more than every browser has, unless the model's buffers are larger.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Declined, findAdapter, openDevice } from "../../../../src/cutaway/trace/web/js/local/gpu/device.js";
import { defineGlobal } from "./globals.mjs";

const MB = 2 ** 20;
const browse = (t, navigator) => defineGlobal(t, "navigator", { value: navigator });

/** An adapter with these limits, which notes what is asked of it. */
function adapterOf(binding, buffer) {
  const asked = [];
  return {
    asked, info: { vendor: "acme", architecture: "one" }, limits: { maxStorageBufferBindingSize: binding, maxBufferSize: buffer },
    requestDevice: async (how) => (asked.push(how), {}),
  };
}

test("a model whose buffers are small asks for no more than the standard's limits", async () => {
  const adapter = adapterOf(4096 * MB, 4096 * MB), { name } = await openDevice(adapter, 100 * MB);
  assert.equal(name, "acme one");
  assert.deepEqual(adapter.asked, [{ requiredLimits: { maxStorageBufferBindingSize: 100 * MB, maxBufferSize: 100 * MB } }]);
});

test("every browser's limits suffice for the largest buffer of weights", async () => {
  const adapter = adapterOf(128 * MB, 256 * MB);
  await openDevice(adapter, 128 * MB);
  assert.equal(adapter.asked.length, 1);
});

test("a larger buffer than the device's is refused in a sentence, before a device is asked for", async () => {
  for (const adapter of [adapterOf(128 * MB, 256 * MB), adapterOf(256 * MB, 128 * MB)]) {
    await assert.rejects(openDevice(adapter, 129 * MB), /its buffers have at most 134217728 bytes, and the model needs 135266304/);
    assert.deepEqual(adapter.asked, []);
  }
});

test("a browser without WebGPU, and one without a GPU, say so", async (t) => {
  browse(t, {});
  await assert.rejects(findAdapter(true), /this browser has no WebGPU/);
  browse(t, { gpu: { requestAdapter: async () => null } });
  await assert.rejects(findAdapter(true), /the browser finds no GPU/);
});

test("a program of the processor is declined, unless the reader insists", async (t) => {
  const adapter = { info: { vendor: "google", architecture: "swiftshader", isFallbackAdapter: true } };
  browse(t, { gpu: { requestAdapter: async () => adapter } });
  await assert.rejects(findAdapter(true), (error) => error instanceof Declined && /[(]google swiftshader[)] is a program on the processor/.test(error.message));
  assert.equal(await findAdapter(false), adapter);
});
