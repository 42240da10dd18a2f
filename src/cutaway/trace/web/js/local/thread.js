/**
 * A thread beside the one that asks the core: it enters the core and stays there.
 *
 * Knows the one message that cores.js sends it.
 */

import { imports } from "./core.js";

onmessage = ({ data: { module, memory, id, stack, data } }) => {
  const { exports } = new WebAssembly.Instance(module, imports(() => memory, memory));
  const core = /** @type {import("./core.js").Exports} */ (/** @type {unknown} */ (exports));
  core.__stack_pointer.value = stack;
  core.__wasm_init_tls(data);
  postMessage("ready");
  core.work(id);
};
