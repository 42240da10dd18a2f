/**
 * The inside of one step, as /v1/inside answers it (docs/inside.md): named arrays and metadata, read from a
 * safetensors file, which is the length of a header, the header as JSON, then the arrays.
 *
 * Knows the file format. Knows no document, and not where the file comes from.
 */

import { unescapeName } from "./trace.js";

/** @typedef {Float32Array | Int32Array | Uint8Array} Numbers */

/** @type {Record<string, (bytes: ArrayBuffer) => Numbers>} */
const DTYPES = {
  F32: (bytes) => new Float32Array(bytes),
  I32: (bytes) => new Int32Array(bytes),
  U8: (bytes) => new Uint8Array(bytes),
};
const LENGTH = 8; // bytes of the header's length

export class StepInside {
  /** @param {ArrayBuffer} file */
  constructor(file) {
    const length = Number(new DataView(file).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(file, LENGTH, length)));
    const { __metadata__: metadata, ...tensors } = header;
    /** @type {Record<string, string>} */
    this.metadata = metadata;
    /** @type {Map<string, Numbers>} */
    this.arrays = new Map(Object.entries(tensors).map(([name, { dtype, data_offsets: [from, to] }]) =>
      [name, /** @type {(bytes: ArrayBuffer) => Numbers} */ (DTYPES[dtype])(
        file.slice(LENGTH + length + from, LENGTH + length + to))]));
    const [, layers, heads] = tensors.heads.shape;
    this.layers = /** @type {number} */ (layers);
    this.heads = /** @type {number} */ (heads);
    this.positions = this.array("token_ids").length;
    this.bytes = file.byteLength;
    /** @type {number} id of the token whose logit is explained */
    this.token = this.value("token");
    /** @type {number} id of the token that it is compared with */
    this.rival = this.value("rival");
    /** @type {Record<number, string>} tokens by id */
    this.names = Object.fromEntries(Object.entries(this.value("names") ?? {}).map(([id, name]) => [id, unescapeName(name)]));
  }

  /** @param {string} name @returns {Numbers} empty where the file has no such array */
  array(name) {
    return this.arrays.get(name) ?? new Float32Array();
  }

  /** @param {string} name @returns {any} a value of the metadata that is written as JSON; null: there is none */
  value(name) {
    return JSON.parse(this.metadata[name] ?? "null");
  }
}
