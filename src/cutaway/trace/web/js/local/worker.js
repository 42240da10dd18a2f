/**
 * The thread that computes: it loads a page's model, and answers with the records of texts, one token at a time.
 *
 * Knows messages: {load, files}, {ask: number, …}, {stop: number}. Knows no document.
 */

import { Core } from "./core.js";
import { compileCore, createMemory, start } from "./cores.js";
import { Folder } from "./files.js";
import { computeInside } from "./inside.js";
import { Loop } from "./loop.js";
import { Tokenizer } from "./tokenizer.js";

/** @type {Promise<{loop: Loop, anatomy: import("./inside.js").Anatomy | null}> | null} */
let loading = null;
/** @type {Map<number, AbortController>} */
const running = new Map();
/** The core has the keys and values of one text: each request waits for the one before it. */
let before = Promise.resolve();

/** @param {string} address @param {import("./model.js").Files} files */
async function load(address, { files, weights: size }) {
  const folder = new Folder(address, files, (...progress) => postMessage({ progress }));
  folder.expect(size);
  const [model, plan, vocabulary, anatomy] = await Promise.all(["model", "plan", "tokenizer", "inside"].map((name) => folder.json(`${name}.json`)));
  const compiled = await compileCore(folder), memory = compiled.threads > 1 ? createMemory(plan.bytes) : undefined;
  const weights = (/** @type {Uint8Array} */ to) => folder.fill(model.parts, to);
  const core = await Core.load(compiled.module, plan, weights, compiled.threads, memory);
  await start(core, compiled);
  return { loop: new Loop(core, new Tokenizer(vocabulary), model, { tier: compiled.tier, threads: compiled.threads }), anatomy };
}

/** @param {Loop} loop @param {number} id @param {import("./loop.js").Asked} text @param {AbortSignal} signal */
async function write(loop, id, text, signal) {
  for await (const records of loop.records(text, signal)) postMessage({ id, records });
  postMessage({ id, done: true });
}

onmessage = async ({ data }) => {
  if (data.stop !== undefined) return running.get(data.stop)?.abort();
  if (data.load !== undefined) loading ??= load(data.load, data.files);
  const id = data.ask;
  try {
    if (!loading) return;
    const { loop, anatomy } = await loading;
    if (data.load !== undefined) return postMessage({ loaded: true });
    if (data.tokenize !== undefined) return postMessage({ id, done: loop.tokenizer.idsAndNames(data.tokenize, data.special) });
    const control = new AbortController();
    running.set(id, control);
    const answer = data.inside
      ? async () => postMessage({ id, done: (await computeInside(loop, anatomy, data.inside, control.signal)) ?? true })
      : () => write(loop, id, data.text, control.signal);
    const answering = before.then(answer);
    before = answering.catch(() => {}); // its own request reports the error
    await answering;
  } catch (error) {
    postMessage({ id, error: /** @type {Error} */ (error).message, param: /** @type {any} */ (error).param ?? null });
  } finally {
    running.delete(id);
  }
};
