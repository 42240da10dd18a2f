/**
 * The thread that computes: it loads a page's model, and answers with the records of texts, one token at a time.
 *
 * Knows messages: {load, files, insists}, {ask: number, …}, {stop: number}. Knows no document.
 */

import { Core, MOST_BYTES } from "./core.js";
import { compileCore, createMemory, start } from "./cores.js";
import { Folder } from "./files.js";
import { Declined } from "./gpu/device.js";
import { GpuModel } from "./gpu/model.js";
import { computeInside } from "./inside.js";
import { Loop } from "./loop.js";
import { Reader } from "./reader.js";
import { Tokenizer } from "./tokenizer.js";

/**
 * gpu: null where the core computes; useGpu: let the GPU compute, if it can; inside: a loop whose texts the core computes, in whose
 * tensors one can look
 * @typedef {{loop: Loop, gpu: GpuModel | null, useGpu: (patience: import("./gpu/model.js").Patience) => Promise<void>,
 *   inside: () => Promise<Loop>, anatomy: import("./inside.js").Anatomy | null}} Model
 */

const CHECK_SECONDS = 10;

/** @type {Promise<Model> | null} */
let loading = null;
/** @type {Map<number, AbortController>} */
const running = new Map();
/** There are the keys and values of one text: each request waits for the one before it. */
let before = Promise.resolve();

/**
 * @param {string} address @param {import("./model.js").Files} files @param {boolean} insists whether the reader chose the GPU, slow or not
 * @returns {Promise<Model>}
 */
async function load(address, { files, weights: size }, insists) {
  const folder = new Folder(address, files, (...progress) => postMessage({ progress }));
  folder.expect(size);
  const [model, plan, vocabulary, anatomy] = await Promise.all(["model", "plan", "tokenizer", "inside"].map((name) => folder.json(`${name}.json`)));
  const compiled = await compileCore(folder), memory = compiled.threads > 1 ? createMemory(plan.bytes) : undefined;
  const core = await Core.open(compiled.module, memory), tokenizer = new Tokenizer(vocabulary);
  let loads = 0;
  /** @param {(bytes: Uint8Array<ArrayBuffer>, at: number) => void} use */
  const parts = (use) => {
    if (loads++) folder.expect(size - folder.all + folder.done); // again, whatever of it came before
    return folder.eachPart(model.parts, use);
  };
  /** @type {Promise<Loop> | null} */
  let building = null;
  const onCore = () => (building ??= build(core, plan, parts, compiled).then(
    (reader) => new Loop(core, reader, tokenizer, model, { tier: compiled.tier, threads: compiled.threads }, plan.context),
    (error) => {
      building = null; // the next request may succeed
      throw error;
    }));
  const loop = new Loop(core, new Reader(core), tokenizer, model, {}, plan.context);
  loop.onCore = onCore;
  const computeOnCore = async () => void ({ reader: loop.reader, computed: loop.computed } = await onCore());
  /** @type {Model} */
  const loaded = { loop, inside: onCore, anatomy, gpu: null, useGpu: async (patience) => {
    const gpu = loaded.gpu ??= await openGpu(folder, model, core, parts, patience);
    if (!gpu) return;
    const run = async (/** @type {number[]} */ tokens, /** @type {number} */ first) => core.receive(await gpu.run(tokens, first));
    loop.reader = new Reader({ run, hasStates: gpu.hasStates, get rows() { return gpu.rows; }, get longest() { return gpu.longest; } });
    loop.computed = { backend: "gpu", tier: gpu.tier, threads: 1 };
  } };
  loop.fallBack = async (reason, isDeclined = false) => {
    await computeOnCore();
    loaded.gpu?.close();
    loaded.gpu = null;
    postMessage({ device: { gpu: null, reason, isDeclined } });
  };
  await loaded.useGpu({ declines: !insists && plan.bytes < MOST_BYTES, seconds: CHECK_SECONDS });
  if (!loaded.gpu) await computeOnCore();
  return loaded;
}

/**
 * @param {Core} core @param {import("./core.js").Plan} plan
 * @param {(use: (bytes: Uint8Array<ArrayBuffer>, at: number) => void) => Promise<void>} parts
 * @param {import("./cores.js").Compiled} compiled
 */
async function build(core, plan, parts, compiled) {
  await core.build(plan, (to) => parts((bytes, at) => to.set(bytes, at)), compiled.threads);
  await start(core, compiled);
  return new Reader(core);
}

/**
 * @param {Folder} folder @param {any} model @param {Core} core that has the cosines
 * @param {import("./gpu/model.js").EachPart} parts @param {import("./gpu/model.js").Patience} patience
 * @returns {Promise<GpuModel | null>} null: the core computes
 */
async function openGpu(folder, model, core, parts, patience) {
  try {
    if (!model.gpu) throw new Error("the model was exported without what a GPU needs");
    const fetchFiles = async () => {
      const [program, probe, data, probeData] = await Promise.all(
        [folder.json("gpu.json"), folder.json("probe.json"), folder.bytes("gpu.bin"), folder.bytes("probe.bin")]);
      return { program, probe, data, probeData };
    };
    const gpu = await GpuModel.open(fetchFiles, parts, (rotations) => core.angles(rotations), patience, (device) => postMessage({ device }));
    tellOfGpu(gpu);
    return gpu;
  } catch (error) {
    postMessage({ device: { gpu: null, reason: /** @type {Error} */ (error).message, isDeclined: error instanceof Declined } });
    return null;
  }
}

/** @param {GpuModel} gpu that computes */
const tellOfGpu = ({ name, checked, texts, rows, longest }) =>
  postMessage({ device: { gpu: name, ...(checked < texts ? { checked: { right: checked, all: texts, rows, longest } } : {}) } });

/** @param {Loop} loop @param {number} id @param {import("./loop.js").Asked} text @param {AbortSignal} signal */
async function write(loop, id, text, signal) {
  for await (const records of loop.records(text, signal)) postMessage({ id, records });
  postMessage({ id, done: true });
}

/**
 * @param {Model} model @param {any} question @param {number} id @param {AbortSignal} signal
 * @returns {Promise<void>} once it is answered
 */
async function answer({ loop, inside, anatomy, gpu, useGpu }, question, id, signal) {
  if (question.useGpu) {
    await useGpu({ declines: false, seconds: CHECK_SECONDS });
    return postMessage({ id, done: true });
  }
  if (question.useProcessor) {
    await loop.fallBack("you chose it", true);
    return postMessage({ id, done: true });
  }
  if (question.check) {
    loop.reader.cachedIds = []; // the texts overwrite the keys and values
    const tell = (/** @type {string} */ stage) => postMessage({ device: { gpu: gpu?.name, stage } });
    await gpu?.checkAll(tell).then(() => tellOfGpu(gpu), async (error) => {
      await loop.fallBack(error.message);
      throw error;
    });
    return postMessage({ id, done: true });
  }
  if (!question.inside) return write(loop, id, question.text, signal);
  postMessage({ id, done: (await computeInside(await inside(), anatomy, question.inside, signal)) ?? true });
}

onmessage = async ({ data }) => {
  if (data.stop !== undefined) return running.get(data.stop)?.abort();
  if (data.load !== undefined) loading ??= load(data.load, data.files, data.insists);
  const id = data.ask;
  try {
    if (!loading) return;
    const model = await loading;
    if (data.load !== undefined) return postMessage({ loaded: true });
    if (data.tokenize !== undefined) return postMessage({ id, done: model.loop.tokenizer.idsAndNames(data.tokenize, data.special) });
    const control = new AbortController();
    running.set(id, control);
    const answering = before.then(() => answer(model, data, id, control.signal));
    before = answering.catch(() => {}); // its own request reports the error
    await answering;
  } catch (error) {
    postMessage({ id, error: /** @type {Error} */ (error).message, param: /** @type {any} */ (error).param ?? null });
  } finally {
    running.delete(id);
  }
};
