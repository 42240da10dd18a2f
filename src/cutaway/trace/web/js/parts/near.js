/**
 * The panel Two texts: what the model compares them by, and what makes it so: its split over the tokens of both, where it
 * is a sum over pairs of them, and what it is without each word.
 *
 * Where there are shares, tokens are tinted by theirs; where one is chosen, those of the other text by their share with
 * it. Else words are tinted by what leaving them out changes. Knows no run. Computes no share: the server does, as LLM.near.
 */

import { heat } from "../figures/catalogue.js";
import { signed, thousands } from "../figures/numbers.js";
import { ask } from "../state/api.js";
import { sentence } from "../state/session.js";
import { unescaped } from "../state/trace.js";
import { button, el, figure, replace, scale, setAttributes, setText, token } from "./dom.js";
import { table } from "./inside-tables.js";
import { TextsAttention } from "./near-attention.js";
import { View } from "./view.js";

/**
 * shares  [token of the first][token of the second]; null where the score is no sum of such
 * @typedef {{which: Which, word: string, score: number}} LeftOut
 * @typedef {{score: number, method: Method, tokens: [string[], string[]], shares: number[][] | null, left_out: LeftOut[]}} Nearness
 * @typedef {0 | 1} Which
 * @typedef {import("./dom.js").Child} Child
 * @typedef {"cosine" | "head" | "maxsim"} Method
 * @typedef {{title: string, score: string, texts: [string, string], labels: [string, string], ask: string}} Words
 */

const BOTH = /** @type {const} */ ([0, 1]);
/** @type {Pick<Words, "texts" | "labels">} */
const PAIR = { texts: ["query", "document"], labels: ["The query", "The document"] };
/** @type {Record<Method, Words>} */
const WORDS = {
  cosine: { title: "Cosine", score: "cosine", texts: ["first text", "second text"], labels: ["The first text", "The second text"],
    ask: "How near the model finds two texts, and what in both makes them so." },
  head: { title: "Score", score: "score", ...PAIR, ask: "How well the model finds that a document answers a query, and which words of both make it so." },
  maxsim: { title: "MaxSim", score: "MaxSim", ...PAIR, ask: "How well the model finds that a document answers a query, and which tokens of both make it so." },
};
const MOST = 24; // rows

class NearPanel extends View {
  fields = BOTH.map(() => el("textarea", { rows: 2,
    onkeydown: (/** @type {KeyboardEvent} */ event) => this.submits(event) }));
  labels = BOTH.map(() => el("span"));
  start = button("Compare", () => this.compare(), { class: "primary" });
  status = el("p", { role: "status" });
  texts = BOTH.map((which) => el("p", { class: "text", role: "group",
    onkeydown: (/** @type {KeyboardEvent} */ event) => this.moves(event, which) }));
  readout = el("p", { class: "faint readout", role: "status" });
  told = el("span");
  legend = el("p", { class: "legend faint" }, this.told, ": 0 ", scale(), " the largest; − is negative");
  figures = el("div");
  attention = new TextsAttention();
  answer = new AbortController();
  /** @type {Nearness | null} */
  found = null;
  /** @type {{which: Which, at: number} | null} the token, or word, that is told of */
  chosen = null;
  /** @type {Method | null} */
  method = null;

  build() {
    replace(this, ...this.fields.map((field, i) => el("label", {}, this.labels[i] ?? "", field)), el("p", { class: "row" }, this.start),
      this.status, ...this.texts, this.legend, this.readout, this.figures, this.attention.element);
  }

  draw() {
    const method = this.store.state.about?.near ?? "cosine";
    if (method === this.method) return;
    this.method = method;
    this.labels.forEach((label, which) => setText(label, this.words.labels[which] ?? ""));
    this.clear(this.words.ask);
  }

  get words() {
    return WORDS[this.method ?? "cosine"];
  }

  /** @param {string} said */
  clear(said) {
    this.found = this.chosen = null;
    this.attention.clear();
    setText(this.status, said);
    for (const part of [...this.texts, this.legend, this.readout, this.figures]) part.hidden = true;
  }

  /** @param {KeyboardEvent} event */
  submits(event) {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    this.compare();
  }

  async compare() {
    const [first, second] = this.fields.map(({ value }) => value);
    this.answer.abort();
    if (!first?.trim() || !second?.trim()) return this.clear("Write two texts first.");
    const { signal } = (this.answer = new AbortController());
    this.clear("The model reads both texts, and again without each word …");
    try {
      const found = await (await ask("/page/near", { first, second }, signal)).json();
      if (signal.aborted) return;
      this.show(found);
      this.attention.show([first, second], this.words.texts);
    } catch (error) {
      if (!signal.aborted) this.clear(sentence(error));
    }
  }

  /** @param {Nearness} found */
  show(found) {
    this.found = found;
    const [first, second] = found.tokens.map(({ length }) => thousands(length));
    const { title, score, texts } = this.words;
    setText(this.status, `${title} ${plain(found.score)}. ${found.shares ? `It is the sum of the shares of ${first} × ${second} pairs of tokens.`
      : "It is no sum over tokens: each word is left out, and the score computed again."}`);
    setText(this.told, found.shares ? `share of the ${score}` : `change of the ${score} without a word`);
    this.texts.forEach((text, which) => {
      setAttributes(text, { "aria-label": `${found.shares ? "Tokens" : "Words"} of the ${texts[which]}` });
      const pieces = this.pieces(/** @type {Which} */ (which));
      if (!pieces.length) return replace(text, this.fields[which]?.value ?? ""); // of one word
      return replace(text, ...pieces.map((name, at) => {
        const choose = () => this.choose(/** @type {Which} */ (which), at);
        return el("button", { type: "button", class: "token", onclick: choose, onfocus: choose, onmouseenter: choose }, token(unescaped(name)));
      }));
    });
    replace(this.figures, ...this.leftOut(found));
    for (const part of [...this.texts, this.legend, this.readout, this.figures]) part.hidden = false;
    this.tint();
  }

  /** @param {Nearness} found @returns {Child[]} a table of what the score is without each word */
  leftOut(found) {
    const { score, texts } = this.words;
    /** @type {import("./inside-tables.js").Columns} */
    const columns = [["without", 8], ["text", 5.8], [score, 4.2], ["change", 4.2, `from the ${score} of both texts whole`]];
    const rows = [...found.left_out].sort((a, b) => a.score - b.score);
    return [rows.length > 0 && table("Without each word", columns, rows.slice(0, MOST).map((one) => el("tr", {},
      el("th", { scope: "row" }, token(one.word)), el("td", {}, (texts[one.which] ?? "").replace(" text", "")), figure(plain(one.score)),
      figure(signed(one.score - found.score, 4))))), rows.length > MOST && el("p", { class: "faint" }, `and ${rows.length - MOST} words that change it less or raise it`)];
  }

  /** @param {Which} which @returns {LeftOut[]} the words of a text that can be left out */
  wordsOf(which) {
    return this.found?.left_out.filter((one) => one.which === which) ?? [];
  }

  /** @param {Which} which @returns {string[]} what a text is shown as: its tokens, or its words */
  pieces(which) {
    return this.found?.shares ? this.found.tokens[which] : this.wordsOf(which).map(({ word }) => word);
  }

  /** @param {Which} which @param {number} at @returns {number[]} the shares of a token with each of the other text */
  pairs(which, at) {
    const shares = this.found?.shares ?? [];
    return which === 0 ? shares[at] ?? [] : shares.map((row) => row[at] ?? 0);
  }

  /** @param {Which} which @returns {number[]} of each piece of a text: its share, or the change without it */
  own(which) {
    const { found } = this;
    if (found?.shares) return found.tokens[which].map((_, at) => sum(this.pairs(which, at)));
    return this.wordsOf(which).map(({ score }) => score - (found?.score ?? 0));
  }

  /** @param {Which} which @param {number} at a piece that is told of from now on */
  choose(which, at) {
    this.chosen = { which, at };
    this.tint();
  }

  tint() {
    const { found, chosen } = this;
    if (!found) return;
    for (const which of BOTH) this.tintText(which, chosen && found.shares && chosen.which !== which ? this.pairs(chosen.which, chosen.at) : this.own(which));
    if (!chosen) return setText(this.readout, found.shares ? "Choose a token to see its share with each token of the other text." : "Choose a word to see the score without it.");
    const { title, score, texts } = this.words;
    const [whose, other, name] = [texts[chosen.which], texts[1 - chosen.which], token(unescaped(this.pieces(chosen.which)[chosen.at] ?? ""))];
    const value = this.own(chosen.which)[chosen.at] ?? 0;
    if (!found.shares) return replace(this.readout, `${title} without `, name, ` of the ${whose}: ${plain(found.score + value)}, a change of ${signed(value, 4)}.`);
    const pairs = this.pairs(chosen.which, chosen.at);
    const most = pairs.indexOf(Math.max(...pairs));
    replace(this.readout, name, ` of the ${whose} has ${signed(value, 4)} of the ${score}; most with `,
      token(unescaped(found.tokens[chosen.which === 0 ? 1 : 0][most] ?? "")), `: ${signed(pairs[most] ?? 0, 4)}. The ${other} shows its shares with it.`);
  }

  /** @param {number} which @param {number[]} shares of its pieces */
  tintText(which, shares) {
    const most = Math.max(...shares.map(Math.abs)) || 1;
    /** @type {HTMLElement[]} */ ([...(this.texts[which]?.children ?? [])]).forEach((one, at) => {
      const share = shares[at] ?? 0;
      const here = this.chosen?.which === which && this.chosen.at === at;
      setAttributes(one, { "aria-pressed": here, "data-sign": share < 0 ? "−" : "", title: signed(share, 4),
        tabindex: here || (this.chosen?.which !== which && at === 0) ? 0 : -1 });
      one.style.background = heat(Math.abs(share) / most);
    });
  }

  /** @param {KeyboardEvent} event @param {Which} which arrow keys go to the next token */
  moves(event, which) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const tokens = /** @type {HTMLElement[]} */ ([...(this.texts[which]?.children ?? [])]);
    const next = by && tokens[tokens.indexOf(/** @type {HTMLElement} */ (document.activeElement)) + by];
    if (!next) return;
    event.preventDefault();
    event.stopPropagation();
    next.focus();
  }
}

/** @param {number} value @returns {string} as signed() has it, but for the + */
const plain = (value) => signed(value, 4).replace("+", "");

/** @param {number[]} values @returns {number} */
const sum = (values) => values.reduce((all, value) => all + value, 0);

customElements.define("near-panel", NearPanel);
