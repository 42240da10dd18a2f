/**
 * The files of a model in a page's folder. The document names them with their hashes, and model.json names the parts of the
 * weights with theirs, so that nothing is used that is not as it was exported.
 *
 * Knows how they are fetched, kept by the browser and checked; not what is in them.
 */

import { sha256 } from "../state/sha256.js";

/**
 * @typedef {{name: string, bytes: number, sha256: string}} Part
 * @typedef {(done: number, all: number) => void} Progress of bytes, as far as it is known what will be fetched
 */

const CACHE = "cutaway-weights";

export class Folder {
  /** @param {string} address @param {Part[]} files @param {Progress} [progress] */
  constructor(address, files, progress = () => {}) {
    this.address = address;
    this.files = new Map(files.map((file) => [file.name, file]));
    this.progress = progress;
    this.done = this.all = 0;
  }

  /** @param {number} bytes that will be fetched */
  expect(bytes) {
    this.all += bytes;
  }

  /** @param {number} bytes that have come; below 0: they were of no use */
  count(bytes) {
    this.progress((this.done += bytes), this.all);
  }

  /** @param {string} name @returns {Promise<any>} a file of JSON */
  async json(name) {
    return JSON.parse(new TextDecoder().decode(await this.bytes(name)));
  }

  /** @param {string} name @returns {Promise<Uint8Array<ArrayBuffer>>} */
  async bytes(name) {
    const file = this.files.get(name);
    if (!file) throw new Error(`${name} is not in this page: export it again`);
    this.expect(file.bytes);
    return this.fetchWhole(file);
  }

  /**
   * Hand over the parts, whose bytes are expected, one by one: those that were fetched before come from the browser's cache.
   * @param {Part[]} parts @param {(bytes: Uint8Array<ArrayBuffer>, at: number) => void} use
   */
  async eachPart(parts, use) {
    const cache = (await globalThis.caches?.open(CACHE).catch(() => null)) ?? null; // there is none over http
    let at = 0;
    for (const part of parts) {
      use(await this.fetchPart(part, cache), at);
      at += part.bytes;
    }
  }

  /** @param {Part} part @param {Cache | null} cache @returns {Promise<Uint8Array<ArrayBuffer>>} */
  async fetchPart(part, cache) {
    const address = new URL(`${this.address}/${part.name}?${part.sha256.slice(0, 16)}`, location.href).href;
    const copy = await cache?.match(address);
    if (copy) {
      const bytes = new Uint8Array(await copy.arrayBuffer());
      if (await isWhole(bytes, part)) return this.count(part.bytes), bytes;
      await cache?.delete(address); // the browser's own copy was damaged
    }
    const bytes = await this.fetchWhole(part);
    await cache?.put(address, new Response(bytes)).catch(() => {}); // where the browser has no more room, it is fetched again
    return bytes;
  }

  /** @param {Part} file @returns {Promise<Uint8Array<ArrayBuffer>>} as it was exported: what the browser has of an earlier export is fetched again */
  async fetchWhole(file) {
    const bytes = await this.fetch(file.name, file.bytes, "default");
    if (await isWhole(bytes, file)) return bytes;
    this.count(-bytes.length);
    const again = await this.fetch(file.name, file.bytes, "reload");
    if (await isWhole(again, file)) return again;
    throw new Error(`${file.name} was damaged on its way, or on its host: reload the page, or export it again`);
  }

  /** @param {string} name @param {number} size expected bytes @param {RequestCache} cache @returns {Promise<Uint8Array<ArrayBuffer>>} what came */
  async fetch(name, size, cache) {
    let answer;
    try {
      answer = await fetch(`${this.address}/${name}`, { cache });
    } catch {
      throw new Error(`${name} cannot be fetched: is there a connection?`);
    }
    if (!answer.ok || !answer.body) throw new Error(`${name} cannot be fetched: the host answered ${answer.status}`);
    const bytes = new Uint8Array(size), reader = answer.body.getReader();
    let at = 0;
    try {
      for (let piece = await reader.read(); !piece.done && at + piece.value.length <= size; piece = await reader.read()) {
        bytes.set(piece.value, at);
        at += piece.value.length;
        this.count(piece.value.length);
      }
    } catch {
      throw new Error(`${name} was cut off after ${at} of ${size} bytes: is there a connection?`);
    }
    reader.cancel().catch(() => {}); // where more came than was expected
    return bytes.subarray(0, at);
  }
}

/** @param {Uint8Array<ArrayBuffer>} bytes @param {Part} part */
const isWhole = async (bytes, part) => bytes.length === part.bytes && (await sha256(bytes)) === part.sha256;
