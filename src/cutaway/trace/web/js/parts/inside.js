/**
 * The inside of the selected step: what was looked at, who pushed the token above the selected
 * candidate, and what the head would say after each layer. The strip is tinted by the same choice.
 */

import { phrase } from "../figures/catalogue.js";
import { MOST, byPush, headSentence, heads, lensRows, lensSentence, nameIn, ordered, partSentence, parts,
  total } from "../figures/inside.js";
import { memory, signed, thousands, visible } from "../figures/numbers.js";
import { el, renew, replace, say } from "./dom.js";
import { HeadsMap } from "./inside-map.js";
import { PushFall } from "./inside-pushes.js";
import { EXPERTS, HEADS, LENS, PARTS, PLACES, headRows, lensTable, otherPlaces, partRows, placeRows, table } from "./inside-tables.js";
import { View } from "./view.js";
/** @import { Look } from "../state/look.js" */
/** @import { Chosen, Run } from "../state/store.js" */

const RUSH = 150; // milliseconds between two steps below which nobody reads tables
const BY = { weight: "looked at", push: "attributed" };
const MAPS = { push: "attribution", sink: "weight of position 0", induction: "induction", entropy: "spread" };

export class InsidePanel extends View {
  proof = el("p", { class: "proof" });
  missing = el("p", { class: "faint", role: "status" });
  by = choice("The text shows what was", BY, (value) => this.choose({ by: value }));
  map = choice("coloured by", MAPS, (value) => this.choose({ map: value }));
  all = el("button", { type: "button", onclick: () => this.choose({ head: null }) }, "All heads");
  places = el("section");
  picture = new HeadsMap((head) => this.choose({ head }));
  headSays = el("p", { id: "heads-sentence", "aria-live": "polite" });
  headNote = el("p", { class: "faint" });
  heads = el("div");
  lens = el("section");
  fall = new PushFall((part) => this.choose({ part }));
  heading = el("h3");
  partSays = el("p", { id: "part-sentence", "aria-live": "polite" });
  parts = el("div");
  inside = el("div");
  content = el("div", { class: "inside" });
  /** @type {Look | null} */
  shown = null;
  chosen = "";
  moved = 0; // when another look was last shown
  rest = 0;

  build() {
    replace(this.content,
      el("div", {}, this.places,
        el("section", {}, el("div", { class: "row" }, el("h3", {}, "Heads"), this.map.element, this.all),
          this.headSays, this.picture.canvas, this.picture.legend, this.heads, this.headNote)),
      this.lens,
      el("section", { class: "whole" }, this.heading, this.fall.box, this.partSays,
        el("div", { class: "pair" }, this.parts, this.inside),
        el("p", { class: "faint" }, phrase("attribution is no effect"))));
    this.content.addEventListener("click", (event) => this.clicked(event));
    replace(this, el("div", { class: "row" }, this.by.element, this.proof), this.missing, this.content);
  }

  /** @param {Event} event a head may be named in a table */
  clicked(event) {
    const named = /** @type {Element} */ (event.target).closest("[data-head]")?.getAttribute("data-head");
    if (named) this.choose({ head: /** @type {[number, number]} */ (named.split(" ").map(Number)) });
  }

  /** @param {Partial<Chosen>} change */
  choose(change) {
    this.here.set({ inside: { ...this.here.state.inside, ...change } });
  }

  draw() {
    if (this.hidden) return;
    const { run, state } = this.here;
    if (!run?.trace.steps[state.step]) {
      return this.empty("Write something, or open a trace: then each step can be looked into.");
    }
    const { look, error, other } = this.runs.looks.selected;
    if (!look) return this.empty(error ?? "The model computes this step again …", error === undefined);
    const note = other ? "Against another candidate the model is needed; this is against the likeliest other." : "";
    say(this.missing, note);
    this.content.hidden = this.proof.hidden = false;
    this.content.classList.remove("old");
    const chosen = JSON.stringify(state.inside);
    if (look === this.shown && chosen === this.chosen) return;
    const before = this.shown;
    this.shown = look;
    this.chosen = chosen;
    this.show(look, run, fit(state.inside, look), before !== look);
  }

  /** @param {string} sentence @param {boolean} [soon] whether what is shown is about to change */
  empty(sentence, soon = false) {
    say(this.missing, sentence);
    this.content.classList.toggle("old", soon);
    this.content.hidden = this.proof.hidden = !soon || !this.shown;
    this.chosen = "";
  }

  /** @param {Look} look @param {Run} run @param {Chosen} inside @param {boolean} fresh whether it is another look */
  show(look, run, inside, fresh) {
    const ids = look.array("token_ids");
    const at = (/** @type {number} */ position) => visible(run.trace.nameOf(ids[position] ?? 0));
    const every = heads(look);
    this.by.set(inside.by);
    this.map.set(inside.map);
    this.all.hidden = inside.head === null;
    this.showPlaces(look, inside, at);
    this.picture.show(every, [look.layers, look.heads], inside.map, inside.head);
    const head = every[(inside.head?.[0] ?? 0) * look.heads + (inside.head?.[1] ?? 0)];
    say(this.headSays, inside.head && head ? headSentence(head, at(head.most))
      : `${look.value("sinks")} of ${thousands(every.length)} heads rest on position 0 (over 30 %).`);
    say(this.headNote, phrase(inside.map === "push" ? "attribution is no effect" : "attention is no effect"));
    const asRun = look.value("as_run");
    hold(this.proof, el("span", { class: "mono" }, phrase(asRun ? "as on record" : "not as on record",
      { row: look.told["row"] ?? "", recorded: run.trace.steps[Number(look.told["step"])]?.logits_hash ?? "" })),
      ` · it read ${thousands(look.positions)} tokens, ${memory(look.value("kv_bytes"))} of keys and values`);
    const moves = fresh && performance.now() - this.moved < RUSH;
    if (fresh) this.moved = performance.now();
    clearTimeout(this.rest);
    const rest = () => this.showRest(look, run, inside, every, at);
    if (moves) this.rest = window.setTimeout(rest, RUSH); // the text and the map lead while steps fly by
    else rest();
  }

  /**
   * What is read, and not watched.
   * @param {Look} look @param {Run} run @param {Chosen} inside @param {import("../figures/inside.js").Head[]} every
   * @param {(position: number) => string} at
   */
  showRest(look, run, inside, every, at) {
    hold(this.heads, table("The heads with the largest attribution", HEADS, headRows(byPush(every, MOST), at, inside.head)));
    this.showParts(look, inside, every, at);
    const token = nameIn(look, look.token);
    hold(this.heading, "Attribution of ", el("span", { class: "token" }, token), " over ",
      el("span", { class: "token" }, nameIn(look, look.rival)), `, in logits: ${signed(total(look), 3)}`);
    hold(this.lens, el("h3", {}, "What the head would say after each layer"),
      table("The lens", LENS, lensTable(look, lensRows(look))),
      el("p", {}, lensSentence(look, token)), el("p", { class: "faint" }, phrase("not said")));
  }

  /** @param {Look} look @param {Chosen} inside @param {(position: number) => string} at */
  showPlaces(look, { by, head }, at) {
    const told = ordered(look, by, head);
    const who = head ? `L${head[0]}.H${head[1]}` : by === "weight" ? "the mean of all heads" : "all heads together";
    const other = head ? null : otherPlaces(told);
    hold(this.places, el("h3", {}, `${by === "weight" ? "Looked at" : "Attribution"}, by ${who}`),
      table("Positions", PLACES, [...placeRows(told, at), ...(other ? [other] : [])]),
      el("p", { class: "faint" }, phrase(by === "weight" ? "attention is no effect" : "attribution is no effect")));
  }

  /**
   * @param {Look} look @param {Chosen} inside @param {import("../figures/inside.js").Head[]} every
   * @param {(position: number) => string} at
   */
  showParts(look, inside, every, at) {
    const all = parts(look);
    this.fall.show(all, inside.part);
    hold(this.parts, table("Parts", PARTS, partRows(all, total(look))));
    const place = all.findIndex(({ name }) => name === inside.part);
    const part = all[place];
    const before = all.slice(0, place).reduce((sum, { push }) => sum + push, 0);
    say(this.partSays, part ? partSentence(part, before) : "Choose a part: an attention opens into its heads, a head into positions.");
    hold(this.inside, ...(part ? this.opened(look, inside, every, at) : []));
  }

  /**
   * @param {Look} look @param {Chosen} inside @param {import("../figures/inside.js").Head[]} every
   * @param {(position: number) => string} at @returns {HTMLElement[]} what the chosen part is made of
   */
  opened(look, { part, head }, every, at) {
    const layer = Number(/^L(\d+)\./.exec(part ?? "")?.[1] ?? -1);
    const experts = /** @type {[number, number, number][]} */ (look.value("experts")?.[layer] ?? []);
    if (part?.endsWith(".attn")) {
      const mine = every.filter((one) => one.layer === layer);
      const own = head?.[0] === layer ? [table(`Positions of L${layer}.H${head[1]}`, PLACES,
        placeRows(ordered(look, "push", head), at))] : [];
      return [table(`Heads of layer ${layer}`, HEADS, headRows(byPush(mine, mine.length), at, head)),
        el("p", {}, `Rounding to 8 bits within it: ${signed(look.array("rounded")[layer] ?? 0, 4)}.`), ...own];
    }
    if (experts.length && part?.endsWith(".mlp")) {
      return [table(`Experts of layer ${layer}`, EXPERTS, experts.map(([id, share, push]) =>
        el("tr", {}, ...[id, share.toFixed(3), signed(push, 3)].map((text) => el("td", { class: "mono figure" }, text)))))];
    }
    return [el("p", { class: "faint" }, "It is not made of heads.")];
  }
}

/** @param {HTMLElement} element @param {(Node | string)[]} children what it holds from now on; what is the same stays */
const hold = (element, ...children) => {
  const fresh = /** @type {HTMLElement} */ (element.cloneNode(false));
  fresh.append(...children);
  renew(element, fresh);
};

/** @param {Chosen} inside @param {Look} look @returns {Chosen} a head of another model is none here */
const fit = (inside, { layers, heads: count }) =>
  (inside.head && !(inside.head[0] < layers && inside.head[1] < count) ? { ...inside, head: null } : inside);

/**
 * @template {string} V
 * @param {string} label @param {Record<V, string>} all @param {(value: V) => void} choose
 * @returns {{element: HTMLElement, set: (value: V) => void}}
 */
function choice(label, all, choose) {
  const options = Object.entries(all).map(([value, text]) => el("option", { value }, /** @type {string} */ (text)));
  const select = el("select", { onchange: () => choose(/** @type {V} */ (select.value)) }, ...options);
  return { element: el("label", { class: "row" }, label, select), set: (value) => (select.value = value) };
}

customElements.define("inside-panel", InsidePanel);
