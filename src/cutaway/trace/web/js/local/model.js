/**
 * A model in the page itself, in the place of a server: what state/api.js asks, answered by a thread of the browser.
 *
 * Knows the messages of worker.js; not how a text is computed.
 */

import { ApiError } from "../state/api.js";
import { keep, recall } from "../state/storage.js";
import { Folder } from "./files.js";
import { answerPractice } from "./practice.js";
/** @import { Request } from "../state/store.js" */

/**
 * What is in a model's folder: weights, in bytes, and the other files.
 * @typedef {{weights: number, files: import("./files.js").Part[]}} Files
 */

const CHOICE = "cutaway-device", GPU = "gpu"; // in the browser's storage

/** @returns {boolean} whether the reader chose the GPU */
const isGpuChosen = () => recall("localStorage", CHOICE) === GPU;

/** @param {boolean} isChosen for later visits too, where the browser keeps it */
const chooseGpu = (isChosen) => keep("localStorage", CHOICE, isChosen ? GPU : null);

export class LocalModel {
  /**
   * @param {string} address of its folder @param {Files} files in it
   * @param {(done: number, all: number) => void} progress of bytes
   */
  constructor(address, files, progress) {
    this.folder = new Folder(address, files.files);
    this.worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    this.lastId = 0;
    /** @type {Promise<Record<string, import("./practice.js").Sheet>> | null} */
    this.sheets = null;
    /** @type {Map<number, (message: any) => void>} */
    this.waiting = new Map();
    /** @type {import("../state/api.js").Device | null} null: not known yet */
    this.device = null;
    /** @type {(device: import("../state/api.js").Device) => void} */
    this.listener = () => {};
    this.ready = new Promise((resolve, reject) => {
      this.worker.onmessage = ({ data }) => {
        if (data.progress) progress(data.progress[0], data.progress[1]);
        else if (data.device) this.listener((this.device = data.device));
        else if (data.loaded) resolve(true);
        else if (data.id === undefined) reject(new ApiError(data.error, 0));
        else this.waiting.get(data.id)?.(data);
      };
      this.worker.onerror = ({ message }) =>
        reject(new ApiError(`the script of the model does not run (${message || "it cannot be fetched"}): export the page again`, 0));
    });
    this.ready.catch(() => {}); // who waits for it is told
    this.worker.postMessage({ load: address, files, insists: isGpuChosen() });
  }

  /** What the page shows does not wait for the weights; what it asks does. */
  async fetchAbout() {
    return this.folder.json("about.json").catch((error) => {
      throw new ApiError(error.message, 0);
    });
  }

  /** @param {string} text @param {boolean} special @returns {Promise<{ids: number[], names: string[]}>} */
  async tokenize(text, special) {
    for await (const answer of this.messages({ tokenize: text, special })) if (answer.done) return answer.done;
    throw new ApiError("the text was not cut into tokens", 0);
  }

  /**
   * @param {Request} request @param {AbortSignal} signal
   * @returns {AsyncGenerator<any[], void, void>}
   */
  async *records({ kind, prompt, messages, settings, seed, forced }, signal) {
    const conversation = kind === "chat" && typeof prompt === "string" ? messages : null;
    for await (const answer of this.messages({ text: { prompt, messages: conversation, settings, seed, forced } }, signal)) {
      if (answer.records) yield answer.records;
    }
  }

  /** @returns {Promise<Record<string, import("./practice.js").Sheet>>} fetched once */
  exercises() {
    return (this.sheets ??= this.folder.json("practice.json"));
  }

  /** @param {string} path @param {object} [body] @param {AbortSignal} [signal] @returns {Promise<Response>} */
  async ask(path, body, signal) {
    if (path.startsWith("/page/practice")) return Response.json(answerPractice(await this.exercises(), path, { ...body }));
    if (path !== "/v1/inside") throw new ApiError(`${path}: this page has no server; install cutaway, and cutaway serve has it`, 0);
    for await (const { done } of this.messages({ inside: body }, signal)) if (done instanceof ArrayBuffer) return new Response(done);
    throw new ApiError("the inside of the step was not computed", 0);
  }

  /** @param {(device: import("../state/api.js").Device) => void} listener */
  watchDevice(listener) {
    this.listener = listener;
    if (this.device) listener(this.device);
  }

  /** Let the GPU compute that was declined, however long it takes to be ready, now and at later visits. */
  async useGpu() {
    for await (const answer of this.messages({ useGpu: true })) if (answer.done) break;
    if (this.device?.gpu) chooseGpu(true);
  }

  /** Let the processor compute; a later visit chooses anew. */
  async useProcessor() {
    chooseGpu(false);
    for await (const answer of this.messages({ useProcessor: true })) if (answer.done) return;
  }

  /** Compute the texts again that check the GPU; an error says what differs. */
  async checkDevice() {
    for await (const answer of this.messages({ check: true })) if (answer.done) return;
  }

  /** @param {object} question @param {AbortSignal} [signal] @returns {AsyncGenerator<any, void, void>} */
  async *messages(question, signal) {
    await Promise.race([this.ready, new Promise((resolve) => signal?.addEventListener("abort", resolve))]);
    if (signal?.aborted) return;
    const id = ++this.lastId;
    /** @type {any[]} */
    const came = [];
    let wake = () => {};
    this.waiting.set(id, (message) => {
      came.push(message);
      wake();
    });
    const stop = () => this.worker.postMessage({ stop: id });
    signal?.addEventListener("abort", stop);
    this.worker.postMessage({ ask: id, ...question });
    try {
      for (;;) {
        while (!came.length) await new Promise((resolve) => (wake = () => resolve(undefined)));
        const message = came.shift();
        if (message.error) throw new ApiError(message.error, 0, message.param);
        yield message;
        if (message.done) return;
      }
    } finally {
      this.waiting.delete(id);
      signal?.removeEventListener("abort", stop);
      stop();
    }
  }
}
