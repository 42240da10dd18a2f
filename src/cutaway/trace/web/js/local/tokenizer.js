/**
 * A text to token ids and back (src/cutaway/text/tokenizers/__init__.py): special tokens, what begins a text, and between them one of two
 * kinds of BPE.
 *
 * Knows which tokens are special, and when they count; not how ordinary text is merged, and not chats.
 */

import { ByteLevelBPE } from "./bpe.js";
import { SentencePieceBPE } from "./sentencepiece.js";
import { SpecialTokens } from "./special.js";

/**
 * @typedef {{tokens: string[], kinds: number[], bos_id: number | null, add_bos: boolean, names: Record<number, string>,
 *   words: import("./bpe.js").Words | null, pieces: import("./sentencepiece.js").Pieces | null}} Vocabulary
 * tokens: as stored; kinds: of GGUF (1 normal, 2 unknown, 3 control, 4 user-defined, 6 byte)
 * names: of tokens that add nothing to the text; words: where it is byte-level; pieces: where it is SentencePiece's
 */

const NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, BYTE = 6;
const MOST_REMEMBERED = 100_000, LONGEST_REMEMBERED = 64; // words, and their characters

export class Tokenizer {
  /** @param {Vocabulary} vocabulary */
  constructor(vocabulary) {
    const { tokens, kinds, words, pieces } = vocabulary;
    const specials = (/** @type {number[]} */ ...specialKinds) => new SpecialTokens(
      new Map(tokens.flatMap((text, id) => (text && specialKinds.includes(kinds[id] ?? 0) ? [[text, id]] : []))));
    this.vocabulary = vocabulary;
    this.merges = pieces ? new SentencePieceBPE(vocabulary, pieces) : new ByteLevelBPE(vocabulary, /** @type {import("./bpe.js").Words} */ (words));
    this.all = specials(USER_DEFINED, CONTROL, UNKNOWN);
    this.userDefined = specials(USER_DEFINED);
    this.control = specials(CONTROL, UNKNOWN);
    /** @type {Map<string, number[]>} */
    this.remembered = new Map();
  }

  /**
   * @param {string} text
   * @param {boolean} special whether "<|im_start|>" and its like are tokens
   * @param {string} mark that `escape` inserted, which is removed again
   * @returns {number[]}
   */
  encode(text, special = false, mark = "") {
    const { bos_id, add_bos } = this.vocabulary, ids = this.ids(text, special, mark);
    return add_bos && bos_id !== null && ids[0] !== bos_id ? [bos_id, ...ids] : ids;
  }

  /**
   * Return the ids of a text and their names.
   * @param {string} text @param {boolean} special
   */
  idsAndNames(text, special) {
    const ids = this.ids(text, special);
    return { ids, names: ids.map((id) => this.vocabulary.names[id] ?? new TextDecoder().decode(this.bytes(id))) };
  }

  /** @returns {number} the tokens of the vocabulary */
  get size() {
    return this.vocabulary.tokens.length;
  }

  /** @param {number} id @returns {string} with <0xE4> for each byte that is not all of a character */
  name(id) {
    const special = this.vocabulary.names[id], bytes = this.bytes(id);
    if (special !== undefined) return special;
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    } catch {
      return [...bytes].map((byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`).join("");
    }
  }

  /** @param {number} id @returns {Uint8Array} what it adds to the text */
  bytes(id) {
    const isText = [NORMAL, USER_DEFINED, BYTE].includes(this.vocabulary.kinds[id] ?? 0);
    return isText ? this.merges.bytes(id) : new Uint8Array();
  }

  /**
   * Break up each control token of a text, also those that it would form with the text around it.
   * @param {string} text @param {string} mark put into each, behind its first character
   */
  escape(text, mark) {
    return this.control.escape(text, mark);
  }

  /** @param {string} text @param {boolean} special @param {string} mark @returns {number[]} without what begins a text */
  ids(text, special, mark = "") {
    if (/\p{Surrogate}/u.test(text)) throw new Error("the text holds half of a character (a lone surrogate): remove it");
    const splitPart = (/** @type {string | number} */ part) =>
      (typeof part === "number" || !mark ? [part] : this.userDefined.split(part.replaceAll(mark, "")));
    const { space_prefix = false, prefix_once = false } = this.vocabulary.pieces ?? {};
    let begins = space_prefix;
    return (special ? this.all : this.userDefined).split(text, mark).flatMap(splitPart).flatMap((part) => {
      const ids = typeof part === "number" ? [part] : this.merges.words(part, begins).flatMap((word) => this.word(word));
      begins = space_prefix && !prefix_once && typeof part === "number";
      return ids;
    });
  }

  /** @param {string} word @returns {number[]} */
  word(word) {
    const remembered = this.remembered.get(word);
    if (remembered) return remembered;
    const ids = this.merges.mergeWord(word);
    if (this.remembered.size >= MOST_REMEMBERED) this.remembered.clear();
    if (word.length <= LONGEST_REMEMBERED) this.remembered.set(word, ids);
    return ids;
  }
}
