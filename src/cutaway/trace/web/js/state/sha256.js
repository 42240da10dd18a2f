/**
 * SHA-256 of bytes, also where a browser has none of its own: over http, from another machine.
 */

const ROUNDS = 64, BLOCK = 64; // bytes
const PRIMES = firstPrimes(ROUNDS);
const CONSTANTS = Int32Array.from(PRIMES, (prime) => fraction(Math.cbrt(prime)));

/** @param {Uint8Array<ArrayBuffer>} bytes @returns {Promise<string>} in hexadecimal digits */
export async function sha256(bytes) {
  const digest = globalThis.crypto?.subtle ? new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)) : digestOf(bytes);
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {Uint8Array} bytes @returns {Uint8Array} by its definition, FIPS 180-4 */
export function digestOf(bytes) {
  const whole = bytes.length - (bytes.length % BLOCK);
  const rest = bytes.length - whole;
  const end = new Uint8Array(rest + 9 > BLOCK ? 2 * BLOCK : BLOCK);
  end.set(bytes.subarray(whole));
  end[rest] = 0x80;
  new DataView(end.buffer).setBigUint64(end.length - 8, 8n * BigInt(bytes.length));
  const state = Int32Array.from(PRIMES.slice(0, 8), (prime) => fraction(Math.sqrt(prime)));
  const words = new Int32Array(ROUNDS);
  for (const part of [bytes.subarray(0, whole), end]) {
    const view = new DataView(part.buffer, part.byteOffset, part.length);
    for (let at = 0; at < part.length; at += BLOCK) mix(state, words, view, at);
  }
  const digest = new Uint8Array(32), out = new DataView(digest.buffer);
  state.forEach((word, i) => out.setInt32(4 * i, word));
  return digest;
}

/** @param {Int32Array} state @param {Int32Array} words @param {DataView} view @param {number} at */
function mix(state, words, view, at) {
  for (let i = 0; i < 16; i++) words[i] = view.getInt32(at + 4 * i);
  for (let i = 16; i < ROUNDS; i++) {
    const [early, late] = [word(words, i - 15), word(words, i - 2)];
    const sigma0 = turn(early, 7) ^ turn(early, 18) ^ (early >>> 3), sigma1 = turn(late, 17) ^ turn(late, 19) ^ (late >>> 10);
    words[i] = word(words, i - 16) + sigma0 + word(words, i - 7) + sigma1;
  }
  let a = word(state, 0), b = word(state, 1), c = word(state, 2), d = word(state, 3);
  let e = word(state, 4), f = word(state, 5), g = word(state, 6), h = word(state, 7);
  for (let i = 0; i < ROUNDS; i++) {
    const t1 = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + word(CONSTANTS, i) + word(words, i)) | 0;
    const t2 = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    h = g;
    g = f;
    f = e;
    e = (d + t1) | 0;
    d = c;
    c = b;
    b = a;
    a = (t1 + t2) | 0;
  }
  [a, b, c, d, e, f, g, h].forEach((value, i) => (state[i] = word(state, i) + value));
}

/** @param {Int32Array} words @param {number} i */
const word = (words, i) => /** @type {number} */ (words[i]);
/** @param {number} value @param {number} by bits to the right */
const turn = (value, by) => (value >>> by) | (value << (32 - by));

/** @param {number} value @returns {number} the first 32 bits of its fraction */
function fraction(value) {
  return ((value % 1) * 2 ** 32) | 0;
}

/** @param {number} count @returns {number[]} */
function firstPrimes(count) {
  /** @type {number[]} */
  const primes = [];
  for (let n = 2; primes.length < count; n++) if (primes.every((prime) => n % prime)) primes.push(n);
  return primes;
}
