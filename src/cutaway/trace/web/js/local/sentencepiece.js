/**
 * SentencePiece BPE: ordinary text to token ids and back (src/cutaway/text/tokenizers/bpe.py). What is no piece becomes bytes.
 *
 * Knows pieces with their scores, or merges with their ranks; not what tokens are special.
 */

import { merge } from "./merging.js";

/**
 * scores: of the pieces, where these say what is merged; merges: where they do
 * prefix: whether a space is put in front of a text; prefix_once: not of one that begins with a space
 * unknown_id: the token of a character without bytes
 * @typedef {{scores: number[] | null, merges: string[] | null, space_prefix: boolean, prefix_once: boolean,
 *   unknown_id: number | null}} Pieces
 */

const SPACE = "\u2581", WORD = /\u2581*[^\u2581]+|\u2581+/g;
const NORMAL = 1, USER_DEFINED = 4, BYTE = 6;

export class SentencePieceBPE {
  /** @param {import("./tokenizer.js").Vocabulary} vocabulary @param {Pieces} pieces */
  constructor({ tokens, kinds }, { scores, merges, prefix_once, unknown_id }) {
    this.tokens = tokens;
    this.kinds = kinds;
    this.scores = scores;
    this.ranks = merges && new Map(merges.map((pair, rank) => [pair, rank]));
    this.prefixOnce = prefix_once;
    this.unknown = unknown_id;
    /** @type {Map<string, number>} */
    this.pieces = new Map();
    /** @type {Map<number, number>} */
    this.byteIds = new Map();
    tokens.forEach((text, id) => {
      if (text && (kinds[id] === NORMAL || kinds[id] === USER_DEFINED)) this.pieces.set(text, id);
      if (kinds[id] === BYTE) this.byteIds.set(byteOf(text), id);
    });
    // Where no piece holds a space behind another character, words can be merged one by one.
    this.cutsAreSafe = ![...this.pieces.keys()].some((piece) => /[^\u2581]\u2581/.test(piece));
  }

  /** @param {string} text @param {boolean} begins whether a space is put in front @returns {string[]} */
  words(text, begins) {
    const escaped = text.replaceAll(" ", SPACE), isSpaced = begins && !(this.prefixOnce && escaped.startsWith(SPACE));
    const whole = (isSpaced ? SPACE : "") + escaped;
    return this.cutsAreSafe ? whole.match(WORD) ?? [] : [whole];
  }

  /** @param {string} word @returns {number[]} */
  mergeWord(word) {
    return merge([...word], (left, right) => this.cost(left, right)).flatMap((piece) => this.pieces.get(piece) ?? this.spelt(piece));
  }

  /** @param {string} left @param {string} right @returns {number | undefined} of merging them */
  cost(left, right) {
    const id = this.pieces.get(left + right);
    if (id === undefined) return undefined;
    return this.ranks ? this.ranks.get(`${left} ${right}`) : -(this.scores?.[id] ?? 0);
  }

  /** @param {string} letter that is no piece @returns {number[]} its bytes, else the unknown token */
  spelt(letter) {
    const bytes = [...new TextEncoder().encode(letter === SPACE ? " " : letter)], ids = bytes.flatMap((byte) => this.byteIds.get(byte) ?? []);
    if (ids.length === bytes.length) return ids;
    if (this.unknown === null) throw new Error(`the text holds ${letter}, for which the model's vocabulary has no token: remove that character`);
    return [this.unknown];
  }

  /** @param {number} id of a token that is not special @returns {Uint8Array} */
  bytes(id) {
    const text = this.tokens[id] ?? "";
    return this.kinds[id] === BYTE ? Uint8Array.of(byteOf(text)) : new TextEncoder().encode(text.replaceAll(SPACE, " "));
  }
}

/** @param {string} text @returns {number} 10 of "<0x0A>" */
const byteOf = (text) => Number.parseInt(text.slice(3, 5), 16);
