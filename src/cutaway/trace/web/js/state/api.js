/**
 * Requests to the server, and the streams that it answers with.
 *
 * Knows its endpoints and server-sent events. Knows no document and no state of the page.
 */

import { keep, recall } from "./storage.js";
import { lineOf, recordOf } from "./trace.js";
/** @import { Request } from "./store.js" */

/** A refusal, in the server's own sentence. `status` 0: the server could not be reached. */
export class ApiError extends Error {
  /** @param {string} message @param {number} status @param {string | null} [param] */
  constructor(message, status, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

const KEY = "cutaway-key";
const LOCKED = 401;
const NO_KEY = "this server needs an API key: enter it at the top of the page";
const WRONG_KEY = "the API key is wrong: enter the server's key at the top of the page";

/** @returns {string} the API key, which is kept as long as the tab is open */
export const key = () => recall("sessionStorage", KEY) ?? "";

/** @param {string} value */
export const setKey = (value) => keep("sessionStorage", KEY, value.replaceAll(/[\0\r\n]/g, "").trim());

/** @param {string} text @returns {string} its bytes in UTF-8, a character for each: headers have no others */
const bytesOf = (text) => Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join("");

/** @returns {string | null} the model that the address names, where the server has several */
const model = () => new URLSearchParams(globalThis.location?.search).get("model");

/**
 * The page's requests, as a model in the page answers them instead of a server (local/model.js).
 * ready: once it has loaded
 * @typedef {{ready: Promise<any>, fetchAbout: () => Promise<any>,
 *   tokenize: (text: string, special: boolean) => Promise<{ids: number[], names: string[]}>,
 *   records: (request: Request, signal: AbortSignal) => AsyncGenerator<any[], void, void>,
 *   ask: (path: string, body?: object, signal?: AbortSignal) => Promise<Response>,
 *   watchDevice: (listener: (device: Device) => void) => void, checkDevice: () => Promise<void>,
 *   useGpu: () => Promise<void>, useProcessor: () => Promise<void>}} Local
 *
 * The GPU that computes; null: the processor does, why, and whether the GPU is only declined since it is slow; refusal: why a later
 * check failed. Before it computes: how far it is, and how many bytes of its memory the model takes.
 * @typedef {{gpu: string | null, reason?: string, isDeclined?: boolean, refusal?: string | undefined, stage?: string, memory?: number,
 *   checked?: Checked}} Device
 *
 * Where there was no time for all texts that check a GPU: how many had the right bits, and the most tokens that it therefore reads at
 * a time, and in a text.
 * @typedef {{right: number, all: number, rows: number, longest: number}} Checked
 */

/** @type {Local | null} */
let local = null;

/** @param {Local} model answers from now on */
export const use = (model) => void (local = model);

/** @returns {Promise<any>} once the model can write */
export const whenReady = async () => local?.ready;

/** @param {(device: Device) => void} listener called where the page runs its own model, and when its device changes */
export const watchDevice = (listener) => local?.watchDevice(listener);

/** Let the GPU compute that was declined, however long it takes to be ready, now and at later visits. */
export const useGpu = async () => local?.useGpu();

/** Let the processor compute; a later visit chooses anew. */
export const useProcessor = async () => local?.useProcessor();

/** Compute the texts again that check the GPU; an error says what differs. */
export const checkDevice = async () => local?.checkDevice();

/** @returns {Promise<any>} the answer of /page/about */
export async function fetchAbout() {
  if (local) return local.fetchAbout();
  const modelName = model();
  return (await ask(`/page/about${modelName === null ? "" : `?model=${encodeURIComponent(modelName)}`}`)).json();
}

/**
 * @param {string} path below the page's own, where a proxy may have put it
 * @param {object} [body] sent with POST; without it the request is a GET
 * @param {AbortSignal} [signal] @returns {Promise<Response>}
 */
export async function ask(path, body, signal) {
  if (local) return local.ask(path, body, signal);
  /** @type {Record<string, string>} */
  const headers = key() ? { authorization: `Bearer ${bytesOf(key())}` } : {};
  /** @type {RequestInit} */
  const init = { headers, signal: signal ?? null };
  if (body !== undefined) {
    headers["content-type"] = "application/json";
    const modelName = model();
    Object.assign(init, { method: "POST", body: lineOf(modelName === null ? body : { model: modelName, ...body }) });
  }
  let answer;
  try {
    answer = await fetch(`.${path}`, init);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError("the server cannot be reached: is it running?", 0);
  }
  if (answer.ok) return answer;
  const problem = (await answer.json().catch(() => ({}))).error ?? {};
  if (answer.status === LOCKED) throw new ApiError(key() ? WRONG_KEY : NO_KEY, LOCKED);
  throw new ApiError(problem.message ?? `the server answered ${answer.status}`, answer.status, problem.param);
}

/** @param {string} text @param {boolean} special whether names of special tokens are parsed @returns {Promise<{ids: number[], names: string[]}>} */
export async function tokenize(text, special) {
  if (local) return local.tokenize(text, special);
  const body = { prompt: text, add_special_tokens: false, special, return_token_strs: true };
  const { tokens: ids, token_strs: names } = await (await ask("/tokenize", body)).json();
  return { ids, names };
}

/**
 * The records of a run's trace, as they arrive.
 * @param {Request} request @param {AbortSignal} signal
 * @param {(delta: any) => void} [onDelta] gets what an event adds to the answer
 * @returns {AsyncGenerator<any[], void, void>}
 */
export async function* records(request, signal, onDelta = () => {}) {
  if (local) return yield* local.records(request, signal);
  const chat = request.kind === "chat" && typeof request.prompt === "string";
  const body = {
    ...request.settings,
    ...(request.seed === null ? {} : { seed: request.seed }),
    ...(request.forced.length ? { forced: request.forced } : {}),
    ...(chat ? { messages: request.messages } : { prompt: request.prompt }),
    stream: true,
    trace: true,
  };
  const answer = await ask(chat ? "/v1/chat/completions" : "/v1/completions", body, signal);
  if (!answer.body) return;
  for await (const event of events(answer.body)) {
    if (event.error) throw new ApiError(event.error.message, 500, event.error.param);
    for (const { delta } of event.choices ?? []) if (delta) onDelta(delta);
    const batch = event.choices?.flatMap((/** @type {any} */ c) => c.cutaway?.trace ?? []) ?? [];
    if (batch.length) yield batch;
  }
}

/**
 * The data of a stream of server-sent events.
 * @param {ReadableStream<Uint8Array>} body @returns {AsyncGenerator<any, void, void>}
 */
async function* events(body) {
  const reader = body.pipeThrough(decoder()).getReader();
  let left = "";
  try {
    for (let part = await next(reader); !part.done; part = await next(reader)) {
      const whole = (left + part.value).split("\n\n");
      left = whole.pop() ?? "";
      for (const event of whole) {
        const data = event.split("\n").find((line) => line.startsWith("data: "))?.slice(6);
        if (data && data !== "[DONE]") yield recordOf(data);
      }
    }
  } finally {
    await reader.cancel().catch(() => {}); // leaving early closes the connection
  }
}

/** @param {ReadableStreamDefaultReader<string>} reader */
const next = (reader) => reader.read().catch(() => {
  throw new ApiError("the server broke off; the text so far is kept", 0);
});

/** @returns {ReadableWritablePair<string, Uint8Array>} TypeScript's types of the two differ */
const decoder = () => /** @type {any} */ (new TextDecoderStream());
