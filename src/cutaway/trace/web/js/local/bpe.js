/**
 * Byte-level BPE: ordinary text to token ids and back (src/cutaway/text/tokenizers/byte_level.py).
 *
 * Knows merges and words; not what tokens are special.
 */

import { merge } from "./merging.js";

/**
 * patterns: expressions that cut a text into words, one after the other
 * @typedef {{merges: string[], patterns: string[], whole_words: boolean}} Words
 */

const CONTROL = 3, USER_DEFINED = 4, UNKNOWN = 2;

export class ByteLevelBPE {
  /** @param {import("./tokenizer.js").Vocabulary} vocabulary @param {Words} words */
  constructor({ tokens, kinds }, { merges, patterns, whole_words }) {
    this.tokens = tokens;
    this.kinds = kinds;
    this.wholeWords = whole_words;
    this.alphabet = byteAlphabet();
    this.byte = new Map(this.alphabet.map((letter, byte) => [letter, byte]));
    this.ids = new Map(tokens.flatMap((text, id) => (kinds[id] === CONTROL || kinds[id] === UNKNOWN ? [] : [[text, id]])));
    this.ranks = new Map(merges.map((pair, rank) => [pair, rank]));
    this.patterns = patterns.map(expression);
  }

  /** @param {string} text @returns {string[]} */
  words(text) {
    return this.patterns.reduce((words, pattern) => words.flatMap((word) => cut(word, pattern)), [text]);
  }

  /** @param {string} word @returns {number[]} */
  mergeWord(word) {
    const letters = [...new TextEncoder().encode(word)].map((byte) => this.alphabet[byte] ?? "");
    const whole = this.wholeWords ? this.ids.get(letters.join("")) : undefined;
    if (whole !== undefined) return [whole];
    return merge(letters, (left, right) => this.ranks.get(`${left} ${right}`)).map((part) => this.idOf(part));
  }

  /** @param {string} part */
  idOf(part) {
    const id = this.ids.get(part);
    if (id !== undefined) return id;
    const byte = /** @type {number} */ (this.byte.get(part)).toString(16).toUpperCase().padStart(2, "0");
    throw new Error(`the text holds the byte 0x${byte}, for which the model's vocabulary has no token: remove that character`);
  }

  /** @param {number} id of a token that is not special @returns {Uint8Array} */
  bytes(id) {
    const text = this.tokens[id] ?? "";
    if (this.kinds[id] === USER_DEFINED) return new TextEncoder().encode(text);
    return Uint8Array.from([...text], (letter) => /** @type {number} */ (this.byte.get(letter)));
  }
}

/** The printable character that stands for each byte (GPT-2's bytes_to_unicode). */
function byteAlphabet() {
  const isPrintable = (/** @type {number} */ b) => (b >= 0x21 && b < 0x7f) || (b >= 0xa1 && b < 0xad) || b >= 0xae;
  let other = 0x100;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(isPrintable(byte) ? byte : other++));
}

/**
 * Convert an expression of Python's side, whose \s is Unicode's white space; JavaScript's is not.
 * @param {string} pattern
 */
function expression(pattern) {
  const inClass = pattern.replaceAll("\\s", "\\p{White_Space}").replaceAll("\\S", "\\P{White_Space}");
  return new RegExp(inClass, "gu");
}

/**
 * Cut a text into what the expression matches and what lies between.
 * @param {string} text
 * @param {RegExp} pattern
 */
function cut(text, pattern) {
  const words = [];
  let from = 0;
  for (const match of text.matchAll(pattern)) {
    if (!match[0]) continue;
    if (match.index > from) words.push(text.slice(from, match.index));
    words.push(match[0]);
    from = match.index + match[0].length;
  }
  if (from < text.length) words.push(text.slice(from));
  return words;
}
