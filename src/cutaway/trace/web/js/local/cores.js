/**
 * Which of the compiled cores (native/web/build.sh) this browser runs: with relaxed instructions where these are found to be
 * exact, with threads where the page is isolated.
 *
 * Knows what browsers can do, and how threads get into a core; not what a core computes.
 */

import { imports } from "./core.js";

/** A module with one relaxed instruction: browsers that know none refuse it. */
const RELAXED = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 15, 1, 13, 0, 65, 1, 253, 15, 65, 2, 253, 15, 253, 128, 2, 11];
const MOST_THREADS = 4;
const PAGE = 65_536, FIRST_PAGES = 512, MOST_PAGES = 65_535; // as build.sh says
const WORKSPACE = 1 << 30; // bytes beside the weights, at most: keys and values, and what a step needs
const STACK = 1 << 20; // bytes, a multiple of 16
/** Browsers compile code that runs often a second time, with another compiler: the probe runs under both. */
const COLD = 300, HOT = 30_000;

/** @typedef {{module: WebAssembly.Module, tier: string, threads: number}} Compiled */

/** @param {import("./files.js").Folder} folder @returns {Promise<Compiled>} */
export async function compileCore(folder) {
  const threads = globalThis.crossOriginIsolated ? Math.min(navigator.hardwareConcurrency, MOST_THREADS) : 1;
  const compile = (/** @type {string} */ name) => compileFile(folder, `${name}${threads > 1 ? "-threads" : ""}.wasm`);
  if (WebAssembly.validate(new Uint8Array(RELAXED))) {
    const module = await compile("core-relaxed");
    if (await isExact(module, threads)) return { module, tier: "wasm-relaxed", threads };
  }
  return { module: await compile("core"), tier: "wasm", threads };
}

/** @param {import("./files.js").Folder} folder @param {string} name */
async function compileFile(folder, name) {
  const bytes = await folder.bytes(name);
  return WebAssembly.compile(bytes).catch((error) => {
    throw new Error(`${name}: this browser cannot compile it (${error.message})`);
  });
}

/** @param {WebAssembly.Module} module @param {number} threads */
async function isExact(module, threads) {
  const memory = threads > 1 ? createMemory(0) : undefined;
  const { exports } = await WebAssembly.instantiate(module, imports(() => /** @type {WebAssembly.Memory} */ (memory), memory));
  const { probe } = /** @type {{probe: (times: number) => number}} */ (/** @type {unknown} */ (exports));
  return [COLD, HOT, COLD].every((times) => probe(times));
}

/**
 * Create the memory of a core with threads. Browsers reserve the maximum at once, and phones cannot spare 4 GB.
 * @param {number} weights bytes
 */
export function createMemory(weights) {
  const maximum = Math.min(Math.ceil((weights + WORKSPACE) / PAGE), MOST_PAGES);
  return new WebAssembly.Memory({ initial: FIRST_PAGES, maximum, shared: true });
}

/**
 * Start the threads beside this one; each waits in the core for work.
 * @param {import("./core.js").Core} core whose plan is built
 * @param {Compiled} compiled
 */
export async function start(core, { module, threads }) {
  for (let id = 1; id < threads; id++) {
    const worker = new Worker(new URL("./thread.js", import.meta.url), { type: "module" });
    const { allocate, __tls_size: size, __tls_align: align } = core.exports;
    const stack = core.call(() => allocate(STACK)) + STACK;
    const block = core.call(() => allocate(size.value + align.value));
    const data = Math.ceil(block / align.value) * align.value;
    await new Promise((resolve, reject) => {
      worker.onmessage = resolve;
      worker.onerror = ({ message }) => reject(new Error(message));
      worker.postMessage({ module, memory: core.memory, id, stack, data });
    });
  }
}
