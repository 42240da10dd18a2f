/**
 * The inside of the selected step: attention, the logit lens, and the logit attribution of its token over the
 * selected candidate. The text is tinted by the same choice.
 */

import { phrase } from "../figures/catalogue.js";
import { MOST_ROWS, sortByAttribution, componentSentence, components, headSentence, heads, lensRows, lensSentence, nameIn,
  sortedPlaces, total } from "../figures/inside.js";
import { memory, thousands, visible, withSign } from "../figures/numbers.js";
import { AttributionChart } from "./attribution-chart.js";
import { button, el, figure, morph, replace, setText } from "./dom.js";
import { HeadsMap } from "./inside-map.js";
import { COMPONENTS, EXPERTS, HEADS, LENS, PLACES, componentRows, headRows, lensTable, otherPlaces, placeRows,
  table } from "./inside-tables.js";
import { View } from "./view.js";
/** @import { HeadFigures } from "../figures/inside.js" */
/** @import { StepInside } from "../state/step-inside.js" */
/** @import { InsideSelection, Run } from "../state/store.js" */

const RUSH = 150; // milliseconds: steps that follow each other faster do not update the tables
const BY = { weight: "attention weight", attribution: "attribution" };
const MAPS = { attribution: "attribution", sink: "weight of position 0", induction: "induction", entropy: "entropy" };

class InsidePanel extends View {
  proof = el("p", { class: "proof" });
  missing = el("p", { class: "faint", role: "status" });
  by = choice("Colour the text by", BY, (value) => this.choose({ by: value }));
  map = choice("Colour by", MAPS, (value) => this.choose({ map: value }));
  all = button("All heads", () => this.choose({ head: null }));
  places = el("section");
  picture = new HeadsMap((head) => this.choose({ head }));
  headSentence = el("p", { id: "heads-sentence", "aria-live": "polite" });
  headNote = el("p", { class: "faint" });
  heads = el("div");
  lens = el("section");
  chart = new AttributionChart((part) => this.choose({ part }));
  heading = el("h3");
  componentSentence = el("p", { id: "component-sentence", "aria-live": "polite" });
  components = el("div");
  opened = el("div");
  content = el("div", { class: "inside" });
  /** @type {StepInside | null} */
  shownInside = null;
  shownSelection = "";
  movedAt = 0; // when another step was last shown
  timer = 0;

  build() {
    replace(this.content,
      el("div", {}, this.places,
        el("section", {}, el("div", { class: "row" }, el("h3", {}, "Heads"), this.map.element, this.all),
          this.headSentence, this.picture.canvas, this.picture.legend, this.heads, this.headNote)),
      this.lens,
      el("section", { class: "whole" }, this.heading, this.chart.box, this.componentSentence,
        el("div", { class: "pair" }, this.components, this.opened),
        el("p", { class: "faint" }, phrase("attribution is no effect"))));
    this.content.addEventListener("click", (event) => this.handleClick(event));
    replace(this, el("div", { class: "row" }, this.by.element, this.proof), this.missing, this.content);
  }

  /** @param {Event} event a head may be clicked in a table */
  handleClick(event) {
    const head = /** @type {Element} */ (event.target).closest("[data-head]")?.getAttribute("data-head");
    if (head) this.choose({ head: /** @type {[number, number]} */ (head.split(" ").map(Number)) });
  }

  /** @param {Partial<InsideSelection>} change */
  choose(change) {
    this.store.set({ inside: { ...this.store.state.inside, ...change } });
  }

  draw() {
    if (this.hidden) return;
    const { run, state } = this.store;
    if (!run?.trace.steps[state.step]) return this.empty("Write something, or open a trace: this panel shows the inside of each step.");
    const { inside, error, other } = this.session.insides.selectedInside;
    if (!inside) return this.empty(error ?? "The model computes this step again …", error === undefined);
    setText(this.missing, other ? "A comparison with another candidate needs the model; this one is with the likeliest other token." : "");
    this.content.hidden = this.proof.hidden = false;
    this.content.classList.remove("old");
    const selection = JSON.stringify(state.inside);
    if (inside === this.shownInside && selection === this.shownSelection) return;
    const fresh = inside !== this.shownInside;
    this.shownInside = inside;
    this.shownSelection = selection;
    this.show(inside, run, valid(state.inside, inside), fresh);
  }

  /** @param {string} sentence @param {boolean} [soon] whether the figures of another step stay until new ones come */
  empty(sentence, soon = false) {
    setText(this.missing, sentence);
    this.content.classList.toggle("old", soon);
    this.content.hidden = this.proof.hidden = !soon || !this.shownInside;
    this.shownSelection = "";
  }

  /** @param {StepInside} inside @param {Run} run @param {InsideSelection} selection @param {boolean} fresh whether it is another step */
  show(inside, run, selection, fresh) {
    const ids = inside.array("token_ids");
    const tokenAt = (/** @type {number} */ position) => visible(run.trace.nameOf(ids[position] ?? 0));
    const allHeads = heads(inside);
    this.by.set(selection.by);
    this.map.set(selection.map);
    this.all.hidden = selection.head === null;
    this.showPlaces(inside, selection, tokenAt);
    this.picture.show(allHeads, [inside.layers, inside.heads], selection.map, selection.head);
    const head = allHeads[(selection.head?.[0] ?? 0) * inside.heads + (selection.head?.[1] ?? 0)];
    setText(this.headSentence, selection.head && head ? headSentence(head, tokenAt(head.most))
      : `${inside.value("sinks")} of ${thousands(allHeads.length)} heads give position 0 more than 30% of their weight.`);
    setText(this.headNote, phrase(selection.map === "attribution" ? "attribution is no effect" : "attention is no effect"));
    const row = { row: inside.metadata["row"] ?? "" };
    update(this.proof, el("span", { class: "mono" }, phrase(inside.value("as_run") ? "same row" : "other row", row)),
      ` · ${thousands(inside.positions)} tokens, ${memory(inside.value("kv_bytes"))} of keys and values read`);
    const wait = fresh && performance.now() - this.movedAt < RUSH;
    if (fresh) this.movedAt = performance.now();
    clearTimeout(this.timer);
    const rest = () => this.showTables(inside, selection, allHeads, tokenAt);
    if (wait) this.timer = window.setTimeout(rest, RUSH); // while steps fly by, only the text and the map follow
    else rest();
  }

  /**
   * @param {StepInside} inside @param {InsideSelection} selection @param {HeadFigures[]} allHeads
   * @param {(position: number) => string} tokenAt the token at a position
   */
  showTables(inside, selection, allHeads, tokenAt) {
    update(this.heads, table("The heads with the largest attribution", HEADS,
      headRows(sortByAttribution(allHeads).slice(0, MOST_ROWS), tokenAt, selection.head)));
    this.showComponents(inside, selection, allHeads, tokenAt);
    const token = nameIn(inside, inside.token);
    update(this.heading, "Attribution of ", el("span", { class: "token" }, token), " over ",
      el("span", { class: "token" }, nameIn(inside, inside.rival)), `, in logits: ${withSign(total(inside), 3)}`);
    update(this.lens, el("h3", {}, "Logit lens: what the output head would predict after each layer"),
      table("The lens", LENS, lensTable(inside, lensRows(inside))),
      el("p", {}, lensSentence(inside, token)), el("p", { class: "faint" }, phrase("not said")));
  }

  /** @param {StepInside} inside @param {InsideSelection} selection @param {(position: number) => string} tokenAt */
  showPlaces(inside, { by, head }, tokenAt) {
    const positions = sortedPlaces(inside, by, head);
    const source = head ? `L${head[0]}.H${head[1]}` : by === "weight" ? "mean of all heads" : "sum of all heads";
    update(this.places, el("h3", {}, `${by === "weight" ? "Attention weight" : "Attribution"} by position, ${source}`),
      table("Positions", PLACES, [...placeRows(positions, tokenAt), ...(head ? [] : otherPlaces(positions))]),
      el("p", { class: "faint" }, phrase(by === "weight" ? "attention is no effect" : "attribution is no effect")));
  }

  /**
   * @param {StepInside} inside @param {InsideSelection} selection @param {HeadFigures[]} allHeads
   * @param {(position: number) => string} tokenAt
   */
  showComponents(inside, selection, allHeads, tokenAt) {
    const all = components(inside);
    this.chart.show(all, selection.part);
    update(this.components, table("Components", COMPONENTS, componentRows(all, total(inside))));
    const place = all.findIndex(({ name }) => name === selection.part);
    const component = all[place];
    const before = all.slice(0, place).reduce((sum, { attribution }) => sum + attribution, 0);
    setText(this.componentSentence, component ? componentSentence(component, before)
      : "Choose a component: an attention layer splits into its heads, a head into positions.");
    update(this.opened, ...(component ? this.split(inside, selection, allHeads, tokenAt) : []));
  }

  /**
   * @param {StepInside} inside @param {InsideSelection} selection @param {HeadFigures[]} allHeads
   * @param {(position: number) => string} tokenAt @returns {HTMLElement[]} what the chosen component consists of
   */
  split(inside, { part, head }, allHeads, tokenAt) {
    const layer = Number(/^L(\d+)\./.exec(part ?? "")?.[1] ?? -1);
    const experts = /** @type {[number, number, number][]} */ (inside.value("experts")?.[layer] ?? []);
    if (part?.endsWith(".attn")) {
      const positionTables = head?.[0] === layer ? [table(`Positions of L${layer}.H${head[1]}`, PLACES,
        placeRows(sortedPlaces(inside, "attribution", head), tokenAt))] : [];
      return [table(`Heads of layer ${layer}`, HEADS,
        headRows(sortByAttribution(allHeads.filter((figures) => figures.layer === layer)), tokenAt, head)),
      el("p", {}, `Rounding to 8 bits within it: ${withSign(inside.array("rounded")[layer] ?? 0, 4)}.`), ...positionTables];
    }
    if (experts.length && part?.endsWith(".mlp")) {
      return [table(`Experts of layer ${layer}`, EXPERTS, experts.map(([id, share, attribution]) =>
        el("tr", {}, ...[id, share.toFixed(3), withSign(attribution, 3)].map((text) => figure(text)))))];
    }
    return [el("p", { class: "faint" }, "This component has no heads.")];
  }
}

/** @param {HTMLElement} element @param {(Node | string)[]} children its new content; equal nodes stay */
function update(element, ...children) {
  const fresh = /** @type {HTMLElement} */ (element.cloneNode(false));
  fresh.append(...children);
  morph(element, fresh);
}

/** @param {InsideSelection} selection as an address has it @param {StepInside} inside @returns {InsideSelection} what this step can show */
const valid = ({ by, map, head, part }, { layers, heads: count }) => ({ part, by: by in BY ? by : "weight",
  map: map in MAPS ? map : "attribution", head: head && head[0] < layers && head[1] < count ? head : null });

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
