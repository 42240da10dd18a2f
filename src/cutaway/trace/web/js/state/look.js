/**
 * A look: what was found of the inside of one step, as /v1/inside answers it (docs/inside.md), read
 * from a safetensors file: the length of a header, its JSON, then the arrays.
 *
 * Knows the file. Knows no document, and not where it comes from.
 */

/** @typedef {Float32Array | Int32Array | Uint8Array} Numbers */

/** @type {Record<string, (bytes: ArrayBuffer) => Numbers>} */
const KINDS = {
  F32: (bytes) => new Float32Array(bytes),
  I32: (bytes) => new Int32Array(bytes),
  U8: (bytes) => new Uint8Array(bytes),
};
const LENGTH = 8; // bytes of the header's length

export class Look {
  /** @param {ArrayBuffer} file */
  constructor(file) {
    const length = Number(new DataView(file).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(file, LENGTH, length)));
    const { __metadata__: told, ...tensors } = header;
    /** @type {Record<string, string>} what is no array */
    this.told = told;
    /** @type {Map<string, Numbers>} */
    this.arrays = new Map(Object.entries(tensors).map(([name, { dtype, data_offsets: [from, to] }]) =>
      [name, /** @type {(bytes: ArrayBuffer) => Numbers} */ (KINDS[dtype])(
        file.slice(LENGTH + length + from, LENGTH + length + to))]));
    const [, layers, heads] = tensors.heads.shape;
    this.layers = /** @type {number} */ (layers);
    this.heads = /** @type {number} */ (heads);
    this.positions = this.array("token_ids").length;
    this.bytes = file.byteLength;
  }

  /** @param {string} name @returns {Numbers} none: it was not asked for */
  array(name) {
    return this.arrays.get(name) ?? new Float32Array();
  }

  /** @param {string} name @returns {any} a value that is written as JSON */
  value(name) {
    return JSON.parse(this.told[name] ?? "null");
  }

  /** @returns {number} */
  get token() {
    return this.value("token");
  }

  /** @returns {number} */
  get rival() {
    return this.value("rival");
  }
}
