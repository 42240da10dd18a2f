/**
 * The panel Two texts: the cosine of their vectors, split over the tokens of both, and what it is without each word.
 * The tokens are tinted by their share; where one is chosen, those of the other text by their share with it.
 *
 * Knows no run. Computes no share: the server does, as LLM.near.
 */

import { heat } from "../figures/catalogue.js";
import { signed, thousands } from "../figures/numbers.js";
import { ask } from "../state/api.js";
import { sentence } from "../state/session.js";
import { unescaped } from "../state/trace.js";
import { button, el, figure, replace, scale, setAttributes, setText, token } from "./dom.js";
import { table } from "./inside-tables.js";
import { View } from "./view.js";

/**
 * shares  [token of the first][token of the second]
 * @typedef {{cosine: number, tokens: [string[], string[]], shares: number[][],
 *   left_out: {which: 0 | 1, word: string, cosine: number}[]}} Nearness
 * @typedef {0 | 1} Which
 */

const TEXTS = /** @type {const} */ (["first", "second"]);
const MOST = 24; // rows
/** @type {import("./inside-tables.js").Columns} */
const COLUMNS = [["without", 8], ["text", 3.8], ["cosine", 4.2], ["change", 4.2, "from the cosine of both texts whole"]];

class NearPanel extends View {
  fields = TEXTS.map(() => el("textarea", { rows: 2,
    onkeydown: (/** @type {KeyboardEvent} */ event) => this.submits(event) }));
  start = button("Compare", () => this.compare(), { class: "primary" });
  status = el("p", { role: "status" });
  texts = TEXTS.map((name, which) => el("p", { class: "text", role: "group", "aria-label": `Tokens of the ${name} text`,
    onkeydown: (/** @type {KeyboardEvent} */ event) => this.moves(event, /** @type {Which} */ (which)) }));
  readout = el("p", { class: "faint readout", role: "status" });
  legend = el("p", { class: "legend faint" }, "share of the cosine: 0 ", scale(), " the largest; − is negative");
  figures = el("div");
  answer = new AbortController();
  /** @type {Nearness | null} */
  found = null;
  /** @type {{which: Which, at: number} | null} the token whose pairs are shown */
  chosen = null;

  build() {
    replace(this, ...this.fields.map((field, i) => el("label", {}, `The ${TEXTS[i]} text`, field)), el("p", { class: "row" }, this.start), this.status, ...this.texts, this.legend,
      this.readout, this.figures);
    this.clear("How near the model finds two texts, and which tokens of both make them so.");
  }

  /** @param {string} said */
  clear(said) {
    this.found = this.chosen = null;
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
    this.clear("The model reads both texts, and each again without each word …");
    try {
      const found = await (await ask("/page/near", { first, second }, signal)).json();
      if (!signal.aborted) this.show(found);
    } catch (error) {
      if (!signal.aborted) this.clear(sentence(error));
    }
  }

  /** @param {Nearness} found */
  show(found) {
    this.found = found;
    const [first, second] = found.tokens.map(({ length }) => thousands(length));
    setText(this.status, `Cosine ${found.cosine.toFixed(4)}. It is the sum of the shares of ${first} × ${second} pairs of tokens.`);
    this.texts.forEach((text, which) => replace(text, ...(found.tokens[which] ?? []).map((name, at) => {
      const choose = () => this.choose(/** @type {Which} */ (which), at);
      return el("button", { type: "button", class: "token", onclick: choose, onfocus: choose, onmouseenter: choose }, token(unescaped(name)));
    })));
    const rows = [...found.left_out].sort((a, b) => a.cosine - b.cosine);
    replace(this.figures, rows.length > 0 && table("Without each word", COLUMNS, rows.slice(0, MOST).map((one) => el("tr", {},
      el("th", { scope: "row" }, token(one.word)), el("td", {}, TEXTS[one.which]), figure(one.cosine.toFixed(4)),
      figure(signed(one.cosine - found.cosine, 4))))), rows.length > MOST && el("p", { class: "faint" }, `and ${rows.length - MOST} words that change it less or raise it`));
    for (const part of [...this.texts, this.legend, this.readout, this.figures]) part.hidden = false;
    this.tint();
  }

  /** @param {Which} which @param {number} at @returns {number[]} the shares of a token with each of the other text */
  pairs(which, at) {
    const shares = this.found?.shares ?? [];
    return which === 0 ? shares[at] ?? [] : shares.map((row) => row[at] ?? 0);
  }

  /** @param {Which} which @param {number} at a token, whose pairs are shown from now on */
  choose(which, at) {
    this.chosen = { which, at };
    this.tint();
  }

  tint() {
    const { found, chosen } = this;
    if (!found) return;
    const own = /** @type {const} */ ([0, 1]).map((which) => (found.tokens[which] ?? []).map((_, at) => sum(this.pairs(which, at))));
    own.forEach((shares, which) => this.tintText(which, chosen && chosen.which !== which ? this.pairs(chosen.which, chosen.at) : shares));
    if (!chosen) return setText(this.readout, "Choose a token to see its share with each token of the other text.");
    const [name, other] = [found.tokens[chosen.which], found.tokens[chosen.which === 0 ? 1 : 0]];
    const pairs = this.pairs(chosen.which, chosen.at);
    const most = pairs.indexOf(Math.max(...pairs));
    replace(this.readout, token(unescaped(name[chosen.at] ?? "")), ` of the ${TEXTS[chosen.which]} text has ${signed(own[chosen.which]?.[chosen.at] ?? 0, 4)} of the cosine; most with `,
      token(unescaped(other[most] ?? "")), `: ${signed(pairs[most] ?? 0, 4)}. The other text shows its shares with it.`);
  }

  /** @param {number} which @param {number[]} shares of its tokens */
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

/** @param {number[]} values @returns {number} */
const sum = (values) => values.reduce((all, value) => all + value, 0);

customElements.define("near-panel", NearPanel);
