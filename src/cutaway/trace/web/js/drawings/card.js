/**
 * A picture of a step, to share: a few lines of the text around its token, tinted by surprise, the step's river, the
 * sentence that says why the token won, and the figures from which the same text comes again.
 */

import { box, label, mark, picture } from "./marks.js";
import { riverDrawing } from "./river.js";
/** @import { Mark } from "./marks.js" */
/** @import { Card, Piece } from "../figures/card.js" */

export const SIZE = { width: 1200, height: 630 };

const EDGE = 40;
const LINE = { limit: 4, high: 42, letter: 15.6, columns: 71 }; // of the text, in letters of one width
const RIVER = { top: 214, wide: 700, enlarged: 1.6 };
const WORDS = { top: 576, high: 23, limit: 118 }; // of the sentence
const WIDE = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Extended_Pictographic}]/u;

/** @param {Card} card @param {number} scale of the page's type, in which the river's labels are written @returns {Mark} */
export function cardDrawing({ pieces, river, sentence, imprint }, scale) {
  const look = { width: RIVER.wide * scale, scale, selected: null, exit: null };
  return picture(SIZE, `${sentence} ${imprint}`, box({ x: 0, y: 0, ...SIZE }, "paper"), ...text(pieces),
    mark("g", { class: "flow", transform: `translate(${EDGE} ${RIVER.top}) scale(${RIVER.enlarged / scale})` }, ...riverDrawing(river, look).children),
    ...wrap(sentence, WORDS.limit).slice(0, 2).map((line, i) => label(EDGE, WORDS.top + i * WORDS.high, line, "sentence")),
    label(EDGE, SIZE.height - 10, imprint, "imprint"));
}

/** @param {string} word @returns {number} of columns that it takes */
const columnsOf = (word) => [...word].reduce((sum, letter) => sum + (WIDE.test(letter) ? 2 : 1), 0);

/**
 * A piece in a line: its first column, and how many it takes; gap: spaces before it, null for a line break.
 * @typedef {{piece: Piece, word: string, gap: number | null, at: number, long: number}} Placed
 */

/** @param {Piece[]} pieces @returns {Placed[][]} by word: what no space parts stays in one line */
const words = (pieces) => pieces.flatMap((piece) => piece.text.split("\n").map((part, i) => {
  const word = part.trimStart();
  return { piece, word, gap: i ? null : part.length - word.length, at: 0, long: columnsOf(word) };
})).reduce((/** @type {Placed[][]} */ all, item) => {
  const last = all.at(-1);
  if (last && item.gap === 0) last.push(item);
  else all.push([item]);
  return all;
}, []);

/** @param {Piece[]} pieces @returns {Placed[][]} in lines; a space begins none */
function lines(pieces) {
  /** @type {Placed[][]} */
  const all = [[]];
  let column = 0;
  for (const word of words(pieces)) {
    const long = word.reduce((sum, part) => sum + part.long, 0), gap = word[0]?.gap ?? null;
    if (gap === null || (column && column + gap + long > LINE.columns)) {
      all.push([]);
      column = 0;
    }
    column += column ? gap ?? 0 : 0;
    for (const part of word) {
      all.at(-1)?.push({ ...part, at: column });
      column += part.long;
    }
  }
  return all;
}

/** @param {Piece[]} pieces @returns {Mark[]} the lines around the chosen one */
function text(pieces) {
  const all = lines(pieces);
  const tokenRow = all.findIndex((line) => line.some(({ piece }) => piece.isChosen));
  const first = Math.max(0, Math.min(tokenRow - 2, all.length - LINE.limit));
  const excerpt = all.slice(first, first + LINE.limit);
  const cut = [...(first ? [label(EDGE - 24, EDGE + 20, "…", "word prompt")] : []),
    ...(first + LINE.limit < all.length ? [label(SIZE.width - EDGE + 2, EDGE + 20 + (LINE.limit - 1) * LINE.high, "…", "word prompt")] : [])];
  return [...cut, ...excerpt.flatMap((line, row) => line.flatMap(({ piece, word, at, long }) => {
    const x = EDGE + at * LINE.letter, y = EDGE + row * LINE.high, width = Math.max(long, 0.3) * LINE.letter;
    return [
      ...(piece.colour && (word || piece.isChosen) ? [mark("rect", { x, y: y - 4, width, height: 32, class: piece.isChosen ? "tint chosen" : "tint", style: { fill: piece.colour } })] : []),
      ...(word ? [label(x, y + 20, word, piece.colour ? "word" : "word prompt", { textLength: width, lengthAdjust: "spacingAndGlyphs" })] : []),
    ];
  }))];
}

/** @param {string} sentence @param {number} limit of letters in a line @returns {string[]} its lines */
function wrap(sentence, limit) {
  return sentence.split(" ").reduce((/** @type {string[]} */ all, word) => {
    const last = all.at(-1);
    if (last === undefined || last.length + 1 + word.length > limit) all.push(word);
    else all[all.length - 1] = `${last} ${word}`;
    return all;
  }, []);
}
