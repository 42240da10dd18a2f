/**
 * The thread that computes: it loads a page's model, and answers with the records of texts, one token at a time.
 *
 * Knows messages: {load}, {ask: number, …}, {stop: number}. Knows no document.
 */

import { Core } from "./core.js";
import { compiled, shared, start } from "./cores.js";
import { fetched, fill } from "./files.js";
import { inside } from "./inside.js";
import { Loop } from "./loop.js";
import { Tokenizer } from "./tokenizer.js";

/** @type {Promise<{loop: Loop, anatomy: import("./inside.js").Anatomy | null}> | null} */
let loading = null;
/** @type {Map<number, AbortController>} */
const running = new Map();
/** The core has the keys and values of one text: each waits for the one that was asked before it. */
let before = Promise.resolve();

/** @param {string} folder */
async function load(folder) {
  const json = async (/** @type {string} */ name) => (await fetched(folder, name)).json();
  const [model, plan, vocabulary, anatomy] = await Promise.all(["model", "plan", "tokenizer", "inside"].map((name) => json(`${name}.json`)));
  postMessage({ progress: [0, plan.bytes] });
  const made = await compiled(folder), memory = made.threads > 1 ? shared(plan.bytes) : undefined;
  const weights = (/** @type {Uint8Array} */ to) => fill(folder, model.parts, to, (done, all) => postMessage({ progress: [done, all] }));
  const core = await Core.load(made.module, plan, weights, made.threads, memory);
  await start(core, made);
  return { loop: new Loop(core, new Tokenizer(vocabulary), model, { tier: made.tier, threads: made.threads }), anatomy };
}

/** @param {Loop} loop @param {number} id @param {import("./loop.js").Asked} text @param {AbortSignal} signal */
async function write(loop, id, text, signal) {
  for await (const records of loop.records(text, signal)) postMessage({ id, records });
  postMessage({ id, done: true });
}

onmessage = async ({ data }) => {
  if (data.stop !== undefined) return running.get(data.stop)?.abort();
  if (data.load !== undefined) loading ??= load(data.load);
  const id = data.ask;
  try {
    if (!loading) return;
    const { loop, anatomy } = await loading;
    if (data.load !== undefined) return postMessage({ loaded: true });
    if (data.tokenize !== undefined) return postMessage({ id, done: loop.tokenizer.named(data.tokenize, data.special) });
    const control = new AbortController();
    running.set(id, control);
    const answer = data.inside
      ? async () => postMessage({ id, done: (await inside(loop, anatomy, data.inside, control.signal)) ?? true })
      : () => write(loop, id, data.text, control.signal);
    const written = before.then(answer);
    before = written.catch(() => {}); // who asked for it is told
    await written;
  } catch (error) {
    postMessage({ id, error: /** @type {Error} */ (error).message, param: /** @type {any} */ (error).param ?? null });
  } finally {
    running.delete(id);
  }
};
