/**
 * Attention in the texts of the panel Compare texts: the tokens that a chosen one reads from, by head, by layer, or on average,
 * before it and after it. Arcs lead to the eight from which it reads most.
 *
 * Knows no score. Asks the server about each chosen token.
 */

import { heat, phrase } from "../figures/catalogue.js";
import { percent } from "../figures/numbers.js";
import { ask } from "../state/api.js";
import { sentence } from "../state/session.js";
import { unescapeName } from "../state/trace.js";
import { MOST_ROWS } from "../figures/inside.js";
import { Arcs } from "./arcs.js";
import { el, replace, setAttributes, setText, token } from "./dom.js";

/**
 * weights  [layer][head][token]: of what the token at position reads
 * @typedef {{texts: number, tokens: string[], position: number, weights: number[][][]}} Attention
 */

export class TextsAttention {
  textChoice = el("select", { onchange: () => this.choose(null) });
  layer = el("select", { onchange: () => this.layerChosen() });
  head = el("select", { onchange: () => this.draw() });
  text = label("Text", this.textChoice);
  heading = el("h3");
  tokens = el("p", { class: "text", role: "group", "aria-label": "Tokens as the model reads them",
    onkeydown: (/** @type {KeyboardEvent} */ event) => this.moves(event) });
  readout = el("p", { class: "faint readout", role: "status" });
  box = el("div", { class: "arcs-box" }, this.tokens);
  arcs = new Arcs();
  content = el("div", {}, el("div", { class: "row" }, this.text, label("Layer", this.layer), label("Head", this.head)),
    this.box, this.readout, el("p", { class: "faint" }, phrase("attention is no effect")));
  element = el("section", {}, this.heading, this.content);
  answer = new AbortController();
  /** @type {[string, string]} */
  texts = ["", ""];
  /** @type {Attention | null} */
  attention = null;

  /** @param {[string, string]} texts @param {[string, string]} names */
  show(texts, names) {
    this.texts = texts;
    this.clear();
    replace(this.textChoice, ...names.map((name, i) => el("option", { value: i }, name)));
    this.choose(null);
  }

  clear() {
    this.answer.abort();
    this.attention = null;
    this.arcs.show(null);
    this.element.hidden = true;
  }

  /** @param {number | null} position of the token; null: that from which most is read */
  async choose(position) {
    const [first, second] = this.texts;
    this.answer.abort();
    const { signal } = (this.answer = new AbortController());
    const body = { first, second, which: Number(this.textChoice.value), ...(position === null ? {} : { position }) };
    try {
      const attention = await (await ask("/page/near/attention", body, signal)).json();
      if (!signal.aborted) this.take(attention, position === null);
    } catch (error) {
      if (signal.aborted) return;
      setText(this.heading, "Attention");
      replace(this.readout, sentence(error));
      this.tokens.hidden = true;
      this.arcs.show(null);
      this.element.hidden = false;
    }
  }

  /** @param {Attention} attention @param {boolean} fresh whether it is another text */
  take(attention, fresh) {
    this.attention = attention;
    if (fresh) {
      this.text.hidden = attention.texts < 2;
      options(this.layer, "mean of all", attention.weights.map((_, i) => `L${i}`));
      this.layerChosen();
      replace(this.tokens, ...attention.tokens.map((name, at) => el("button", { type: "button", class: "token", onclick: () => this.choose(at) },
        token(unescapeName(name)))));
    }
    this.element.hidden = this.tokens.hidden = false;
    this.draw();
  }

  layerChosen() {
    const heads = this.attention?.weights[Number(this.layer.value)] ?? [];
    options(this.head, "mean", this.layer.value === "" ? [] : heads.map((_, i) => `H${i}`));
    this.head.disabled = this.layer.value === "";
    this.draw();
  }

  /** @returns {number[]} the weights that are shown, of each token */
  get weights() {
    const { attention, layer, head } = this;
    const layers = attention && layer.value !== "" ? [attention.weights[Number(layer.value)] ?? []] : attention?.weights ?? [];
    const heads = layers.flatMap((layerHeads) => (head.value === "" ? layerHeads : [layerHeads[Number(head.value)] ?? []]));
    const attending = heads.filter((row) => row.some((weight) => weight > 0));
    return (attention?.tokens ?? []).map((_, at) => attending.reduce((all, row) => all + (row[at] ?? 0), 0) / (attending.length || 1));
  }

  draw() {
    const { attention, weights, layer, head } = this;
    if (!attention) return;
    const source = layer.value === "" ? "mean of all heads" : head.value === "" ? `mean of the heads of layer ${layer.value}` : `L${layer.value}.H${head.value}`;
    setText(this.heading, `Attention weight by position, ${source}`);
    const top = weights.indexOf(Math.max(...weights));
    [...this.tokens.children].forEach((element, at) => {
      setAttributes(element, { "aria-pressed": at === attention.position, title: percent(weights[at] ?? 0), tabindex: at === attention.position ? 0 : -1 });
      /** @type {HTMLElement} */ (element).style.background = heat((weights[at] ?? 0) / (weights[top] || 1));
    });
    this.showArcs(weights, attention.position);
    replace(this.readout, token(unescapeName(attention.tokens[attention.position] ?? "")), ` at position ${attention.position} reads most from `,
      token(unescapeName(attention.tokens[top] ?? "")), ` at ${top}: ${percent(weights[top] ?? 0)}. Choose another token to see from which it reads.`);
  }

  /** @param {number[]} weights of each token @param {number} position of the token that reads */
  showArcs(weights, position) {
    const from = this.tokens.children[position];
    const sources = weights.map((share, at) => ({ share, at })).filter(({ share }) => share > 0).sort((a, b) => b.share - a.share).slice(0, MOST_ROWS);
    const to = sources.flatMap(({ share, at }) => {
      const element = this.tokens.children[at];
      return element ? [{ element, share }] : [];
    });
    this.arcs.show(from ? this.box : null, from, to, 0.5);
  }

  /** @param {KeyboardEvent} event arrow keys choose the next token */
  moves(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const tokens = /** @type {HTMLElement[]} */ ([...this.tokens.children]);
    const next = by && tokens[tokens.indexOf(/** @type {HTMLElement} */ (document.activeElement)) + by];
    if (!next) return;
    event.preventDefault();
    event.stopPropagation();
    next.focus();
    next.click();
  }
}

/** @param {string} name @param {HTMLElement} field @returns {HTMLElement} */
function label(name, field) {
  field.setAttribute("aria-label", name); // without what it offers
  return el("label", { class: "row" }, name, field);
}

/** @param {HTMLElement} field @param {string} all what no choice is called @param {string[]} names */
function options(field, all, names) {
  replace(field, el("option", { value: "" }, all), ...names.map((name, i) => el("option", { value: i }, name)));
}
