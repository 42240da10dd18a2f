/**
 * Tokens that are found in a text as a whole, before any merging (src/cutaway/text/tokenizers/vocabulary.py).
 *
 * Knows literal texts, and finds them leftmost first, longest first. Some vocabularies have 6,000 of them: a regular
 * expression of all would try each at every place.
 */

export class SpecialTokens {
  /** @param {Map<string, number>} table ids by their texts */
  constructor(table) {
    this.table = table;
    /** @type {Map<string, number[]>} by their first character: how long they are, the longest first */
    this.lengths = new Map();
    for (const literal of table.keys()) {
      const first = firstOf(literal), known = this.lengths.get(first) ?? [];
      if (!known.includes(literal.length)) this.lengths.set(first, [...known, literal.length].sort((a, b) => b - a));
    }
    const letters = [...this.lengths.keys()].map((letter) => letter.replace(/[\\\]^-]/, "\\$&")).join("");
    this.first = letters ? new RegExp(`[${letters}]`, "gu") : null;
    this.longest = [...table.keys()].reduce((longest, { length }) => Math.max(longest, length), 0);
    /** @type {{beginnings: Set<string>, endings: Set<string>} | null} of the literals, once asked for */
    this.halves = null;
  }

  /**
   * Split a text at its special tokens.
   * @param {string} text @param {string} mark see `escape`
   * @returns {(string | number)[]}
   */
  split(text, mark = "") {
    /** @type {(string | number)[]} */
    const pieces = [];
    let from = 0;
    for (const [at, size] of this.findTokens(text, mark)) {
      if (at > from) pieces.push(text.slice(from, at));
      pieces.push(/** @type {number} */ (this.table.get(text.slice(at, at + size))));
      from = at + size;
    }
    if (from < text.length) pieces.push(text.slice(from));
    return pieces;
  }

  /**
   * Break up each special token of a text, also those that it would form with the text around it.
   * @param {string} text @param {string} mark put into each, behind its first character
   */
  escape(text, mark) {
    if (!this.first) return text;
    const { beginnings, endings } = (this.halves ??= halvesOf([...this.table.keys()])), letters = [...text.slice(0, this.longest)];
    const mayBegin = (/** @type {number} */ at) => text.length - at < this.longest && beginnings.has(text.slice(at));
    const cuts = new Set([...text.matchAll(this.first)].flatMap(({ 0: letter, index }) =>
      (this.size(text, index) || mayBegin(index) ? [index + letter.length] : [])));
    if (letters.some((_, i) => i > 0 && endings.has(letters.slice(0, i + 1).join("")))) cuts.add(firstOf(text).length);
    const places = [0, ...[...cuts].sort((a, b) => a - b), text.length];
    return places.slice(1).map((to, i) => text.slice(places[i], to)).join(mark);
  }

  /** @param {string} text @param {string} mark one character with it behind is none @returns {Generator<[at: number, size: number]>} */
  *findTokens(text, mark) {
    for (let at = 0; this.first;) {
      this.first.lastIndex = at;
      const match = this.first.exec(text);
      if (!match) return;
      const letter = match[0].length, size = this.size(text, match.index);
      const isBroken = size === letter && mark && text.startsWith(mark, match.index + letter);
      if (size && !isBroken) yield [match.index, size];
      at = match.index + (isBroken ? letter : size || letter);
    }
  }

  /** @param {string} text @param {number} at @returns {number} how long the longest is that begins there; 0: none does */
  size(text, at) {
    return this.lengths.get(firstOf(text.slice(at, at + 2)))?.find((length) => this.table.has(text.slice(at, at + length))) ?? 0;
  }
}

/** @param {string} text @returns {string} its first character */
const firstOf = (text) => String.fromCodePoint(text.codePointAt(0) ?? 0);

/** @param {string[]} literals @returns their beginnings, and their ends of two characters or more; none is all of one */
function halvesOf(literals) {
  const characters = literals.map((literal) => [...literal]);
  return {
    beginnings: new Set(characters.flatMap((letters) => letters.slice(1).map((_, i) => letters.slice(0, i + 1).join("")))),
    endings: new Set(characters.flatMap((letters) => letters.slice(2).map((_, i) => letters.slice(i + 1).join("")))),
  };
}
