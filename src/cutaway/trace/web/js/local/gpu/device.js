/**
 * The reader's GPU: opened, described, declined where the processor is faster, and noted once it has computed a model's texts
 * with the right bits.
 *
 * Knows what WebGPU and the browser say; not what is computed.
 */

const CACHE = "cutaway-gpu";

/** @typedef {{device: GPUDevice, name: string}} OpenDevice */

/** A GPU that could compute, but slower than the processor: a reader may use it all the same. */
export class Declined extends Error {}

/**
 * @param {boolean} declines whether a program of the processor that stands in for a GPU is declined
 * @returns {Promise<GPUAdapter>} the browser's; an error says why it has none, before anything is fetched for it
 */
export async function findAdapter(declines) {
  if (!navigator.gpu) throw new Error("this browser has no WebGPU, or not at an address without https");
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new Error("the browser finds no GPU");
  if (declines && adapter.info?.isFallbackAdapter) {
    throw new Declined(`what the browser offers as a GPU (${nameOf(adapter.info)}) is a program on the processor, slower than WebAssembly`);
  }
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
 * @template T
 * @param {Promise<T>} work @param {number} seconds after which it is declined @param {() => string} reason @returns {Promise<T>}
 */
export function limitTime(work, seconds, reason) {
  if (seconds === Infinity) return work;
  let timer = 0;
  const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Declined(reason())), 1e3 * seconds)));
  return /** @type {Promise<T>} */ (Promise.race([work, late])).finally(() => clearTimeout(timer));
}

/** @param {string} key @returns {Promise<number>} how many of a model's texts had the right bits on this device in this browser before */
export async function countChecked(key) {
  const cache = await globalThis.caches?.open(CACHE).catch(() => null);
  return Number((await (await cache?.match(addressOf(key)))?.text()) ?? 0);
}

/** @param {string} key @param {number} count note how many of the texts had the right bits; 0: forget it */
export async function noteChecked(key, count) {
  const cache = await globalThis.caches?.open(CACHE).catch(() => null);
  if (count) await cache?.put(addressOf(key), new Response(String(count))).catch(() => {}); // without room they are computed again next time
  else await cache?.delete(addressOf(key));
}

/** @param {string} key */
const addressOf = (key) => new URL(`?${encodeURIComponent(key)}`, location.href).href;
