/**
 * Byte-level BPE: a text to token ids and back, as src/cutaway/text/bpe.py has it.
 *
 * Knows merges, words and special tokens; not chats, and not where a text comes from.
 */

/**
 * @typedef {{tokens: string[], kinds: number[], merges: string[], patterns: string[], whole_words: boolean,
 *   bos_id: number | null, add_bos: boolean, names: Record<number, string>}} Vocabulary
 * tokens: as stored, a character a byte; kinds: of GGUF (1 normal, 3 control, 4 user-defined)
 * patterns: expressions that cut a text into words, one after the other; names: of control tokens
 */

const CONTROL = 3, USER_DEFINED = 4, UNKNOWN = 2;
const MOST_REMEMBERED = 100_000; // words

export class ByteLevelBPE {
  /** @param {Vocabulary} vocabulary */
  constructor(vocabulary) {
    const { tokens, kinds, merges, patterns } = vocabulary;
    this.vocabulary = vocabulary;
    const alphabet = byteAlphabet();
    this.byte = new Map(alphabet.map((letter, byte) => [letter, byte]));
    this.alphabet = alphabet;
    this.ids = new Map(tokens.flatMap((text, id) => (kinds[id] === CONTROL || kinds[id] === UNKNOWN ? [] : [[text, id]])));
    this.ranks = new Map(merges.map((pair, rank) => [pair, rank]));
    this.patterns = patterns.map(expression);
    this.special = literals(vocabulary, [USER_DEFINED, CONTROL]);
    this.userDefined = literals(vocabulary, [USER_DEFINED]);
    const { ids } = literals(vocabulary, [CONTROL]);
    this.control = { ids, starts: new Set([...ids.keys()].map((literal) => String.fromCodePoint(literal.codePointAt(0) ?? 0))) };
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
    if (/\p{Surrogate}/u.test(text)) throw new Error("the text holds half of a character (a lone surrogate): remove it");
    const { bos_id, add_bos } = this.vocabulary;
    const unmarked = (/** @type {string | number} */ piece) =>
      (typeof piece === "number" || !mark ? [piece] : this.pieces(piece.replaceAll(mark, ""), false));
    const pieces = this.pieces(text, special, mark).flatMap(unmarked);
    const ids = pieces.flatMap((piece) => (typeof piece === "number" ? [piece] : this.ordinary(piece)));
    return add_bos && bos_id !== null && ids[0] !== bos_id ? [bos_id, ...ids] : ids;
  }

  /**
   * The ids of a text, and how each reads.
   * @param {string} text @param {boolean} special
   */
  named(text, special) {
    const ids = this.pieces(text, special).flatMap((piece) => (typeof piece === "number" ? [piece] : this.ordinary(piece)));
    return { ids, names: ids.map((id) => this.vocabulary.names[id] ?? new TextDecoder().decode(this.bytes(id))) };
  }

  /** @param {number} id @returns {string} with <0xE4> for each byte that is not all of a character */
  name(id) {
    const known = this.vocabulary.names[id], bytes = this.bytes(id);
    if (known !== undefined) return known;
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    } catch {
      return [...bytes].map((byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`).join("");
    }
  }

  /** @param {number} id @returns {Uint8Array} */
  bytes(id) {
    const text = this.vocabulary.tokens[id] ?? "", kind = this.vocabulary.kinds[id];
    if (kind === CONTROL || kind === UNKNOWN) return new Uint8Array();
    if (kind === USER_DEFINED) return new TextEncoder().encode(text);
    return Uint8Array.from([...text], (letter) => /** @type {number} */ (this.byte.get(letter)));
  }

  /**
   * Texts, and the tokens between them that are found as a whole: the first, and of these the longest.
   * @param {string} text
   * @param {boolean} special
   * @param {string} mark one character with it behind is no token
   * @returns {(string | number)[]}
   */
  pieces(text, special, mark = "") {
    const { found, ids } = special ? this.special : this.userDefined;
    /** @type {(string | number)[]} */
    const pieces = [];
    let from = 0;
    for (const match of found ? text.matchAll(found) : []) {
      if (mark && [...match[0]].length === 1 && text.startsWith(mark, match.index + match[0].length)) continue;
      if (match.index > from) pieces.push(text.slice(from, match.index));
      pieces.push(/** @type {number} */ (ids.get(match[0])));
      from = match.index + match[0].length;
    }
    if (from < text.length) pieces.push(text.slice(from));
    return pieces;
  }

  /**
   * A text in which no control token can be found, nor begin or end with what is around it (text/special_tokens.py).
   * @param {string} text @param {string} mark put into each, behind its first character
   */
  escape(text, mark) {
    const { ids, starts } = this.control, letters = [...text];
    const cuts = new Set(letters.flatMap((letter, at) => {
      const rest = starts.has(letter) ? letters.slice(at).join("") : "";
      return rest && [...ids.keys()].some((literal) => rest.startsWith(literal) || literal.startsWith(rest)) ? [at + 1] : [];
    }));
    if ([...ids.keys()].some((literal) => endsInto(literal, text))) cuts.add(1);
    return letters.map((letter, at) => (cuts.has(at) && at ? mark : "") + letter).join("") + (cuts.has(letters.length) ? mark : "");
  }

  /** @param {string} text @returns {number[]} */
  ordinary(text) {
    let words = [text];
    for (const pattern of this.patterns) words = words.flatMap((word) => cut(word, pattern));
    return words.flatMap((word) => this.word(word));
  }

  /** @param {string} word @returns {number[]} */
  word(word) {
    const known = this.remembered.get(word);
    if (known) return known;
    const letters = [...new TextEncoder().encode(word)].map((byte) => this.alphabet[byte] ?? "");
    const whole = this.vocabulary.whole_words ? this.ids.get(letters.join("")) : undefined;
    const ids = whole !== undefined ? [whole] : this.merged(letters).map((part) => this.idOf(part));
    if (this.remembered.size >= MOST_REMEMBERED) this.remembered.clear();
    if (word.length <= 64) this.remembered.set(word, ids);
    return ids;
  }

  /** @param {string} part */
  idOf(part) {
    const id = this.ids.get(part);
    if (id !== undefined) return id;
    const byte = /** @type {number} */ (this.byte.get(part)).toString(16).toUpperCase().padStart(2, "0");
    throw new Error(`the text holds the byte 0x${byte}, for which the model's vocabulary has no token: remove that character`);
  }

  /**
   * The pair with the lowest rank is merged first, the leftmost among equals.
   * @param {string[]} parts
   */
  merged(parts) {
    parts = [...parts];
    for (;;) {
      let best = Infinity, at = -1;
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = this.ranks.get(`${parts[i]} ${parts[i + 1]}`);
        if (rank !== undefined && rank < best) [best, at] = [rank, i];
      }
      if (at < 0) return parts;
      parts.splice(at, 2, `${parts[at]}${parts[at + 1]}`);
    }
  }
}

/**
 * The tokens of these kinds by their texts, and what finds the first in a text, and of these the longest.
 * @param {Vocabulary} vocabulary @param {number[]} wanted
 */
function literals({ tokens, kinds }, wanted) {
  const ids = new Map(tokens.flatMap((text, id) => (text && wanted.includes(kinds[id] ?? 0) ? [[text, id]] : [])));
  const texts = [...ids.keys()].sort((a, b) => b.length - a.length).map((text) => text.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&"));
  return { ids, found: texts.length ? new RegExp(texts.join("|"), "g") : null };
}

/** @param {string} literal @param {string} text @returns {boolean} whether the text begins with two or more of its last characters */
function endsInto(literal, text) {
  const letters = [...literal];
  return letters.some((_, at) => at > 0 && letters.length - at > 1 && text.startsWith(letters.slice(at).join("")));
}

/** The printable character that stands for each byte (GPT-2's bytes_to_unicode). */
function byteAlphabet() {
  const isPrintable = (/** @type {number} */ b) => (b >= 0x21 && b < 0x7f) || (b >= 0xa1 && b < 0xad) || b >= 0xae;
  let other = 0x100;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(isPrintable(byte) ? byte : other++));
}

/**
 * An expression of Python's side. White space is Unicode's there, and JavaScript's \s is not.
 * @param {string} pattern
 */
function expression(pattern) {
  const inClass = pattern.replaceAll("\\s", "\\p{White_Space}").replaceAll("\\S", "\\P{White_Space}");
  return new RegExp(inClass, "gu");
}

/**
 * What the expression finds, and what lies between.
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
