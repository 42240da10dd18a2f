/**
 * The panel Compare texts: the model's score of two texts, its shares by token where it is a sum over pairs of tokens, and the
 * score without each word.
 *
 * Tokens are tinted by their shares; once one is chosen, those of the other text by their shares with it, and arcs lead to the
 * eight largest of these. Where there are
 * no shares, words are tinted by the change without them. Knows no run. Computes no share: the server does, as LLM.near.
 */

import { heat } from "../figures/catalogue.js";
import { thousands, withSign } from "../figures/numbers.js";
import { ask } from "../state/api.js";
import { MOST_ROWS as MOST_ARCS } from "../figures/inside.js";
import { onlyCompares } from "../state/panels.js";
import { sentence } from "../state/session.js";
import { unescapeName } from "../state/trace.js";
import { Arcs } from "./arcs.js";
import { button, el, figure, replace, scale, setAttributes, setText, token } from "./dom.js";
import { table } from "./inside-tables.js";
import { TextsAttention } from "./near-attention.js";
import { View } from "./view.js";
/** @import { About } from "../state/store.js" */

/**
 * shares  [token of the first][token of the second]; null where the score is no sum of such
 * @typedef {{which: Which, word: string, score: number}} LeftOut
 * @typedef {{score: number, method: Method, tokens: [string[], string[]], shares: number[][] | null, left_out: LeftOut[]}} Nearness
 * @typedef {0 | 1} Which
 * @typedef {import("./dom.js").Child} Child
 * @typedef {"cosine" | "head" | "maxsim"} Method
 * @typedef {{title: string, score: string, texts: [string, string], labels: [string, string], kind: string, ask: string,
 *   examples: [string, string][]}} Words
 */

const SIDES = /** @type {const} */ ([0, 1]);
/** @type {Pick<Words, "texts" | "labels" | "examples">} */
const PAIR = { texts: ["query", "document"], labels: ["The query", "The document"], examples: [
  ["How high is Mount Everest?", "The summit of Mount Everest is 8,849 metres above the sea."],
  ["What do cats eat?", "A cat lives on meat: mice, birds and fish."],
  ["How do I reset my password?", "Our shops are open from nine to five."],
] };
/** @type {Record<Method, Words>} */
const WORDS = {
  cosine: { title: "Cosine", score: "cosine", texts: ["first text", "second text"], labels: ["The first text", "The second text"],
    kind: "an encoder: it makes vectors of texts, with POST /v1/embeddings or cutaway embed",
    ask: "How near the model finds two texts, and what in both makes them so.", examples: [
      ["A man is playing the guitar.", "Someone makes music on an instrument."],
      ["She sat down on the bank of the river.", "The bank raised its interest rates."],
      ["The film was wonderful.", "I did not like the movie at all."],
    ] },
  head: { title: "Score", score: "score", ...PAIR, kind: "a reranker: it scores how well documents answer a query, with POST /v1/rerank or cutaway rerank",
    ask: "How well the model finds that a document answers a query, and which words of both make it so." },
  maxsim: { title: "MaxSim", score: "MaxSim", ...PAIR, kind: "an encoder for late interaction: it makes a vector of each token, with POST /v1/multi-vector or cutaway embed",
    ask: "How well the model finds that a document answers a query, and which tokens of both make it so." },
};
const MOST_ROWS = 24; // rows

class NearPanel extends View {
  fields = SIDES.map(() => el("textarea", { rows: 2,
    onkeydown: (/** @type {KeyboardEvent} */ event) => this.submits(event) }));
  labels = SIDES.map(() => el("span"));
  start = button("Compare", () => this.compare(), { class: "primary" });
  kind = el("p", { hidden: true });
  examples = el("div", { class: "examples", role: "group", "aria-label": "Examples" });
  status = el("p", { role: "status" });
  texts = SIDES.map((side) => el("p", { class: "text", role: "group",
    onkeydown: (/** @type {KeyboardEvent} */ event) => this.moves(event, side) }));
  box = el("div", { class: "arcs-box" }, ...this.texts);
  arcs = new Arcs();
  readout = el("p", { class: "faint readout", role: "status" });
  legendText = el("span");
  legend = el("p", { class: "legend faint" }, this.legendText, ": 0 ", scale(), " the largest; − is negative");
  figures = el("div");
  attention = new TextsAttention();
  answer = new AbortController();
  /** @type {Nearness | null} */
  nearness = null;
  /** @type {{side: Which, at: number} | null} the token, or word, that the readout describes */
  choice = null;
  /** @type {About | null | undefined} whose words and examples are shown */
  about = undefined;

  build() {
    replace(this, this.kind, this.examples, ...this.fields.map((field, i) => el("label", {}, this.labels[i] ?? "", field)), el("p", { class: "row" }, this.start),
      this.status, this.box, this.legend, this.readout, this.figures, this.attention.element);
  }

  draw() {
    const { about } = this.store.state;
    if (about === this.about) return;
    this.about = about;
    this.labels.forEach((label, side) => setText(label, this.words.labels[side] ?? ""));
    this.kind.hidden = !onlyCompares(about);
    setText(this.kind, this.kind.hidden ? "" : `${about?.model} is ${this.words.kind}. Click two texts, or write your own.`);
    replace(this.examples, ...this.words.examples.map((texts) => button(texts.join(" · "), () => this.take(texts))));
    this.clear(this.words.ask);
  }

  get words() {
    return WORDS[this.about?.near ?? "cosine"];
  }

  /** @param {string} status */
  clear(status) {
    this.nearness = this.choice = null;
    this.attention.clear();
    this.arcs.show(null);
    setText(this.status, status);
    for (const part of [...this.texts, this.legend, this.readout, this.figures]) part.hidden = true;
  }

  /** @param {KeyboardEvent} event */
  submits(event) {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    this.compare();
  }

  /** @param {[string, string]} texts to compare */
  take(texts) {
    this.fields.forEach((field, side) => (field.value = texts[side] ?? ""));
    this.compare();
  }

  async compare() {
    const [first, second] = this.fields.map(({ value }) => value);
    this.answer.abort();
    if (!first?.trim() || !second?.trim()) return this.clear("Write two texts first.");
    const { signal } = (this.answer = new AbortController());
    this.clear("The model reads both texts, and again without each word …");
    try {
      const nearness = await (await ask("/page/near", { first, second }, signal)).json();
      if (signal.aborted) return;
      this.show(nearness);
      this.attention.show([first, second], this.words.texts);
    } catch (error) {
      if (!signal.aborted) this.clear(sentence(error));
    }
  }

  /** @param {Nearness} nearness */
  show(nearness) {
    this.nearness = nearness;
    const [first, second] = nearness.tokens.map(({ length }) => thousands(length));
    const { title, score, texts } = this.words;
    setText(this.status, `${title} ${plain(nearness.score)}. ${nearness.shares ? `It is the sum of the shares of ${first} × ${second} pairs of tokens.`
      : "It is no sum over tokens: each word is left out, and the score computed again."}`);
    setText(this.legendText, nearness.shares ? `share of the ${score}` : `change of the ${score} without a word`);
    this.texts.forEach((text, side) => {
      setAttributes(text, { "aria-label": `${nearness.shares ? "Tokens" : "Words"} of the ${texts[side]}` });
      const pieces = this.pieces(/** @type {Which} */ (side));
      if (!pieces.length) return replace(text, this.fields[side]?.value ?? ""); // of one word
      return replace(text, ...pieces.map((name, at) => {
        const choose = () => this.choose(/** @type {Which} */ (side), at);
        return el("button", { type: "button", class: "token", onclick: choose, onfocus: choose, onmouseenter: choose }, token(unescapeName(name)));
      }));
    });
    replace(this.figures, ...this.leftOut(nearness));
    for (const part of [...this.texts, this.legend, this.readout, this.figures]) part.hidden = false;
    this.tint();
  }

  /** @param {Nearness} nearness @returns {Child[]} a table of what the score is without each word */
  leftOut(nearness) {
    const { score, texts } = this.words;
    /** @type {import("./inside-tables.js").Columns} */
    const columns = [["without", 8], ["text", 5.8], [score, 4.2], ["change", 4.2, `from the ${score} of both texts whole`]];
    const rows = [...nearness.left_out].sort((a, b) => a.score - b.score);
    return [rows.length > 0 && table("Without each word", columns, rows.slice(0, MOST_ROWS).map((change) => el("tr", {},
      el("th", { scope: "row" }, token(change.word)), el("td", {}, (texts[change.which] ?? "").replace(" text", "")), figure(plain(change.score)),
      figure(withSign(change.score - nearness.score, 4))))), rows.length > MOST_ROWS && el("p", { class: "faint" }, `and ${rows.length - MOST_ROWS} words that change it less or raise it`)];
  }

  /** @param {Which} side @returns {LeftOut[]} the words of a text that can be left out */
  wordsOf(side) {
    return this.nearness?.left_out.filter((change) => change.which === side) ?? [];
  }

  /** @param {Which} side @returns {string[]} what a text is shown as: its tokens, or its words */
  pieces(side) {
    return this.nearness?.shares ? this.nearness.tokens[side] : this.wordsOf(side).map(({ word }) => word);
  }

  /** @param {Which} side @param {number} at @returns {number[]} the shares of a token with each of the other text */
  pairs(side, at) {
    const shares = this.nearness?.shares ?? [];
    return side === 0 ? shares[at] ?? [] : shares.map((row) => row[at] ?? 0);
  }

  /** @param {Which} side @returns {number[]} of each piece of a text: its share, or the change without it */
  ownShares(side) {
    const { nearness } = this;
    if (nearness?.shares) return nearness.tokens[side].map((_, at) => sum(this.pairs(side, at)));
    return this.wordsOf(side).map(({ score }) => score - (nearness?.score ?? 0));
  }

  /** @param {Which} side @param {number} at a piece for the readout to describe */
  choose(side, at) {
    this.choice = { side, at };
    this.tint();
  }

  tint() {
    const { nearness, choice } = this;
    if (!nearness) return;
    for (const side of SIDES) this.tintText(side, choice && nearness.shares && choice.side !== side ? this.pairs(choice.side, choice.at) : this.ownShares(side));
    this.showArcs();
    if (!choice) return setText(this.readout, nearness.shares ? "Choose a token to see its share with each token of the other text." : "Choose a word to see the score without it.");
    const { title, score, texts } = this.words;
    const [sideName, otherName, name] = [texts[choice.side], texts[1 - choice.side], token(unescapeName(this.pieces(choice.side)[choice.at] ?? ""))];
    const value = this.ownShares(choice.side)[choice.at] ?? 0;
    if (!nearness.shares) return replace(this.readout, `${title} without `, name, ` of the ${sideName}: ${plain(nearness.score + value)}, a change of ${withSign(value, 4)}.`);
    const pairs = this.pairs(choice.side, choice.at);
    const top = pairs.indexOf(Math.max(...pairs));
    replace(this.readout, name, ` of the ${sideName} has ${withSign(value, 4)} of the ${score}; most with `,
      token(unescapeName(nearness.tokens[choice.side === 0 ? 1 : 0][top] ?? "")), `: ${withSign(pairs[top] ?? 0, 4)}. The ${otherName} shows its shares with it.`);
  }

  /** Show arcs from the selected token to those of the other text with which it has the largest shares. */
  showArcs() {
    const { nearness, choice } = this;
    const from = choice && nearness?.shares ? this.texts[choice.side]?.children[choice.at] : undefined;
    if (!choice || !from) return this.arcs.show(null);
    const pairs = this.pairs(choice.side, choice.at).map((share, at) => ({ share, at }));
    const partners = pairs.filter(({ share }) => share).sort((a, b) => Math.abs(b.share) - Math.abs(a.share)).slice(0, MOST_ARCS);
    const largest = 2 * Math.abs(partners[0]?.share ?? 1);
    const to = partners.flatMap(({ share, at }) => {
      const element = this.texts[1 - choice.side]?.children[at];
      return element ? [{ element, share: share / largest }] : [];
    });
    this.arcs.show(this.box, from, to, 0.5);
  }

  /** @param {number} side @param {number[]} shares of its pieces */
  tintText(side, shares) {
    const largest = Math.max(...shares.map(Math.abs)) || 1;
    /** @type {HTMLElement[]} */ ([...(this.texts[side]?.children ?? [])]).forEach((element, at) => {
      const share = shares[at] ?? 0;
      const here = this.choice?.side === side && this.choice.at === at;
      setAttributes(element, { "aria-pressed": here, "data-sign": share < 0 ? "−" : "", title: withSign(share, 4),
        tabindex: here || (this.choice?.side !== side && at === 0) ? 0 : -1 });
      element.style.background = heat(Math.abs(share) / largest);
    });
  }

  /** @param {KeyboardEvent} event @param {Which} side arrow keys go to the next token */
  moves(event, side) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const tokens = /** @type {HTMLElement[]} */ ([...(this.texts[side]?.children ?? [])]);
    const next = by && tokens[tokens.indexOf(/** @type {HTMLElement} */ (document.activeElement)) + by];
    if (!next) return;
    event.preventDefault();
    event.stopPropagation();
    next.focus();
  }
}

/** @param {number} value @returns {string} with four decimals, and a sign only where it is negative */
const plain = (value) => withSign(value, 4).replace("+", "");

/** @param {number[]} values @returns {number} */
const sum = (values) => values.reduce((all, value) => all + value, 0);

customElements.define("near-panel", NearPanel);
