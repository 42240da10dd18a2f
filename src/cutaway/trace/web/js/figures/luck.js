/**
 * The luck of a seed: Gumbel noise, a function of the seed, the position and the token (docs/luck.md). With this machine's
 * logarithm, so the last bits may differ from the engine's. Knows no document.
 */

const [ROUNDS, MULTIPLY, WEYL] = [10, [0xd2511f53n, 0xcd9e8d57n], [0x9e3779b9n, 0xbb67ae85n]];
const WORD = 0xffffffffn;

/** @param {[bigint, bigint, bigint, bigint]} counter @param {[bigint, bigint]} key @returns {bigint[]} four words: Philox4x32-10 */
function philox([a, b, c, d], [k, l]) {
  const [m, o] = MULTIPLY;
  const [w, x] = WEYL;
  for (let round = 0; round < ROUNDS; round++) {
    const [low, high] = [(m ?? 0n) * a, (o ?? 0n) * c];
    [a, b, c, d] = [(high >> 32n) ^ b ^ k, high & WORD, (low >> 32n) ^ d ^ l, low & WORD];
    [k, l] = [(k + (w ?? 0n)) & WORD, (l + (x ?? 0n)) & WORD];
  }
  return [a, b, c, d];
}

/** @param {string} seed of 64 bits @param {number} position of the token in the text @param {number} id @returns {number} */
export function luckOf(seed, position, id) {
  const bits = BigInt(seed);
  const words = philox([BigInt(Math.floor(id / 4)), BigInt(position), 0n, 0n], [bits & WORD, bits >> 32n]);
  const uniform = (Number(words[id % 4]) + 0.5) / 2 ** 32;
  return -Math.log(-Math.log(uniform));
}
