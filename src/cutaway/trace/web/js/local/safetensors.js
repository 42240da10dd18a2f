/** A safetensors file: the length of a header, the header as JSON, then the arrays. */

/** @typedef {Float32Array | Int32Array | Uint8Array} Numbers */

/**
 * @param {[name: string, numbers: Numbers, shape: number[]][]} arrays @param {Record<string, string>} metadata
 * @returns {ArrayBuffer}
 */
export function safetensors(arrays, metadata) {
  let at = 0;
  const tensors = arrays.map(([name, numbers, shape]) => {
    const dtype = numbers instanceof Float32Array ? "F32" : numbers instanceof Int32Array ? "I32" : "U8";
    return [name, { dtype, shape, data_offsets: [at, (at += numbers.byteLength)] }];
  });
  const header = new TextEncoder().encode(JSON.stringify({ __metadata__: metadata, ...Object.fromEntries(tensors) }));
  const file = new Uint8Array(8 + header.length + at);
  new DataView(file.buffer).setBigUint64(0, BigInt(header.length), true);
  file.set(header, 8);
  at = 8 + header.length;
  for (const [, numbers] of arrays) {
    file.set(new Uint8Array(numbers.buffer, numbers.byteOffset, numbers.byteLength), at);
    at += numbers.byteLength;
  }
  return file.buffer;
}
