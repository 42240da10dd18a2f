/**
 * Attention in the texts of the panel Two texts: from which tokens one that is chosen reads, by a head, a layer or the mean.
 *
 * Knows no score. Asks the server of each token that is chosen.
 */

import { heat, phrase } from "../figures/catalogue.js";
import { percent } from "../figures/numbers.js";
import { ask } from "../state/api.js";
import { sentence } from "../state/session.js";
import { unescaped } from "../state/trace.js";
import { el, replace, setAttributes, setText, token } from "./dom.js";

/**
 * weights  [layer][head][token]: of what the token at position reads
 * @typedef {{texts: number, tokens: string[], position: number, weights: number[][][]}} Attention
 */

export class TextsAttention {
  which = el("select", { onchange: () => this.choose(null) });
  layer = el("select", { onchange: () => this.layerChosen() });
  head = el("select", { onchange: () => this.draw() });
  text = label("Text", this.which);
  heading = el("h3");
  tokens = el("p", { class: "text", role: "group", "aria-label": "Tokens as the model reads them",
    onkeydown: (/** @type {KeyboardEvent} */ event) => this.moves(event) });
  readout = el("p", { class: "faint readout", role: "status" });
  content = el("div", {}, el("div", { class: "row" }, this.text, label("Layer", this.layer), label("Head", this.head)),
    this.tokens, this.readout, el("p", { class: "faint" }, phrase("attention is no effect")));
  element = el("section", {}, this.heading, this.content);
  answer = new AbortController();
  /** @type {[string, string]} */
  texts = ["", ""];
  /** @type {Attention | null} */
  found = null;

  /** @param {[string, string]} texts @param {[string, string]} names */
  show(texts, names) {
    this.texts = texts;
    this.clear();
    replace(this.which, ...names.map((name, i) => el("option", { value: i }, name)));
    this.choose(null);
  }

  clear() {
    this.answer.abort();
    this.found = null;
    this.element.hidden = true;
  }

  /** @param {number | null} position of the token; null: that from which most is read */
  async choose(position) {
    const [first, second] = this.texts;
    this.answer.abort();
    const { signal } = (this.answer = new AbortController());
    const asked = { first, second, which: Number(this.which.value), ...(position === null ? {} : { position }) };
    try {
      const found = await (await ask("/page/near/attention", asked, signal)).json();
      if (!signal.aborted) this.take(found, position === null);
    } catch (error) {
      if (signal.aborted) return;
      setText(this.heading, "Attention");
      replace(this.readout, sentence(error));
      this.tokens.hidden = true;
      this.element.hidden = false;
    }
  }

  /** @param {Attention} found @param {boolean} fresh whether it is another text */
  take(found, fresh) {
    this.found = found;
    if (fresh) {
      this.text.hidden = found.texts < 2;
      options(this.layer, "mean of all", found.weights.map((_, i) => `L${i}`));
      this.layerChosen();
      replace(this.tokens, ...found.tokens.map((name, at) => el("button", { type: "button", class: "token", onclick: () => this.choose(at) },
        token(unescaped(name)))));
    }
    this.element.hidden = this.tokens.hidden = false;
    this.draw();
  }

  layerChosen() {
    const heads = this.found?.weights[Number(this.layer.value)] ?? [];
    options(this.head, "mean", this.layer.value === "" ? [] : heads.map((_, i) => `H${i}`));
    this.head.disabled = this.layer.value === "";
    this.draw();
  }

  /** @returns {number[]} the weights that are shown, of each token */
  get weights() {
    const { found, layer, head } = this;
    const layers = found && layer.value !== "" ? [found.weights[Number(layer.value)] ?? []] : found?.weights ?? [];
    const heads = layers.flatMap((each) => (head.value === "" ? each : [each[Number(head.value)] ?? []]));
    const attending = heads.filter((each) => each.some((weight) => weight > 0));
    return (found?.tokens ?? []).map((_, at) => attending.reduce((all, each) => all + (each[at] ?? 0), 0) / (attending.length || 1));
  }

  draw() {
    const { found, weights, layer, head } = this;
    if (!found) return;
    const whose = layer.value === "" ? "mean of all heads" : head.value === "" ? `mean of the heads of layer ${layer.value}` : `L${layer.value}.H${head.value}`;
    setText(this.heading, `Attention weight by position, ${whose}`);
    const most = weights.indexOf(Math.max(...weights));
    [...this.tokens.children].forEach((one, at) => {
      setAttributes(one, { "aria-pressed": at === found.position, title: percent(weights[at] ?? 0), tabindex: at === found.position ? 0 : -1 });
      /** @type {HTMLElement} */ (one).style.background = heat((weights[at] ?? 0) / (weights[most] || 1));
    });
    replace(this.readout, token(unescaped(found.tokens[found.position] ?? "")), ` at position ${found.position} reads most from `,
      token(unescaped(found.tokens[most] ?? "")), ` at ${most}: ${percent(weights[most] ?? 0)}. Choose another token to see from which it reads.`);
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
