/**
 * The reader's GPU: opened, described, and noted once it has computed a model's texts with the right bits.
 *
 * Knows what WebGPU and the browser say; not what is computed.
 */

const CACHE = "cutaway-gpu";

/** @typedef {{device: GPUDevice, name: string}} OpenDevice */

/** @returns {Promise<GPUAdapter>} the browser's; an error says why it has none, before anything is fetched for it */
export async function findAdapter() {
  if (!navigator.gpu) throw new Error("this browser has no WebGPU, or not at an address without https");
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new Error("the browser finds no GPU");
  return adapter;
}

/** @param {GPUAdapter} adapter @param {number} largest bytes of a buffer @returns {Promise<OpenDevice>} */
export async function openDevice(adapter, largest) {
  const { maxStorageBufferBindingSize: binding, maxBufferSize: buffer } = adapter.limits;
  if (largest > Math.min(binding, buffer)) {
    throw new Error(`its buffers have at most ${Math.min(binding, buffer)} bytes, and the model needs ${largest}`);
  }
  const name = nameOf(adapter.info ?? {});
  const device = await adapter.requestDevice({ requiredLimits: { maxStorageBufferBindingSize: largest, maxBufferSize: largest } });
  return { device, name };
}

/** @param {Partial<GPUAdapterInfo>} info older browsers have none */
function nameOf({ vendor, architecture, device, description }) {
  return description || [vendor, architecture, device].filter(Boolean).join(" ") || "GPU";
}

/**
 * Whether this model's texts had the right bits on this device in this browser before.
 * @param {string} key
 */
export async function isChecked(key) {
  const cache = await globalThis.caches?.open(CACHE).catch(() => null);
  return Boolean(await cache?.match(addressOf(key)));
}

/** @param {string} key @param {boolean} isRight note that they had, or forget it */
export async function noteCheck(key, isRight) {
  const cache = await globalThis.caches?.open(CACHE).catch(() => null);
  if (isRight) await cache?.put(addressOf(key), new Response("")).catch(() => {}); // without room it is checked again next time
  else await cache?.delete(addressOf(key));
}

/** @param {string} key */
const addressOf = (key) => new URL(`?${encodeURIComponent(key)}`, location.href).href;
