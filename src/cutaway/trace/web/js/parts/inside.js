/**
 * The inside of the selected step: the logit lens as a tower, the map of heads, the attention of one of them, what states
 * keep, and the logit attribution of the step's token over the selected candidate. The text is tinted by the same choice.
 * The tables have the same figures.
 */

import { attentionDrawing } from "../drawings/attention.js";
import { bands } from "../drawings/bands.js";
import { HEAD, pitchOf, tower } from "../drawings/tower.js";
import { attends, attention, attentionSentence, headName, layersAttending, stateLayers, stateSentence, statesSentence, tintedBy, towerSentence } from "../figures/attention.js";
import { phrase } from "../figures/catalogue.js";
import { componentSentence, components, headSentence, heads, layerName, lensRows, lensSentence, nameIn, total } from "../figures/inside.js";
import { memory, thousands, visible, withSign } from "../figures/numbers.js";
import { AttributionChart } from "./attribution-chart.js";
import { button, el, replace, setText, update } from "./dom.js";
import { Drawing } from "./drawing.js";
import { InsideFigures } from "./inside-figures.js";
import { HeadsMap } from "./inside-map.js";
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
  map = choice("heads by", MAPS, (value) => this.choose({ map: value }));
  all = button("All heads", () => this.choose({ head: null }));
  tower = new Drawing("tower", () => this.drawHeads());
  picture = new HeadsMap((head) => this.choose({ head }), (head) => this.point(head));
  attention = new Drawing("attention");
  attentionHeading = el("h3");
  mapBox = el("div", { class: "heads" }, this.picture.canvas, el("div", {}, this.picture.legend, this.map.element));
  headSentence = el("p", { id: "heads-sentence", "aria-live": "polite" });
  lensSentence = el("p");
  notes = el("p", { class: "faint" });
  states = new Drawing("states");
  stateSection = el("section", {}, el("h3", {}, "What the states keep of each token"), this.states.element,
    el("p", { class: "faint" }, "The share of each token in what a layer's heads read from their states; the rest was forgotten or overwritten. "
      + "Half comes from the tokens right of the mark."));
  chart = new AttributionChart((part) => this.choosePart(part));
  heading = el("h3");
  componentSentence = el("p", { id: "component-sentence", "aria-live": "polite" });
  figures = new InsideFigures(() => this.forget());
  pictures = el("div", { class: "picture" }, this.tower.element, this.mapBox, el("div", { class: "one-head" },
    el("div", { class: "row" }, this.attentionHeading, this.all), this.attention.element, this.by.element), this.stateSection);
  content = el("div", { class: "inside" });
  /** @type {StepInside | null} */
  shownInside = null;
  shownSelection = "";
  /** @type {string | null} of the chart */
  shownPart = null;
  /** Draws the map on the rows of the tower, and marks the row of the chosen head. */
  drawHeads = () => {};
  movedAt = 0; // when another step was last shown
  timer = 0;

  build() {
    replace(this.content,
      this.pictures, this.headSentence, this.lensSentence, this.proof, this.notes,
      el("section", {}, this.heading, this.chart.box, this.componentSentence, el("p", { class: "faint" }, phrase("attribution is no effect"))),
      this.figures.element);
    this.content.addEventListener("click", (event) => this.handleClick(event));
    replace(this, this.missing, this.content);
  }

  /** @param {[number, number] | null} head that the mouse is over */
  point(head) {
    if (String(head) !== String(this.store.state.pointed)) this.store.set({ pointed: head });
  }

  /** @param {string} part of the chart: its figures are in a table */
  choosePart(part) {
    this.figures.element.open = true;
    this.choose({ part });
  }

  /** Show the step again, although it is the same. */
  forget() {
    this.shownSelection = "";
    this.draw();
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
    this.content.hidden = false;
    this.content.classList.remove("old");
    const selection = JSON.stringify([this.store.selectionInside, state.large]);
    if (inside === this.shownInside && selection === this.shownSelection) return;
    const fresh = inside !== this.shownInside;
    this.shownInside = inside;
    this.shownSelection = selection;
    this.show(inside, run, valid(this.store.selectionInside, inside), fresh);
  }

  /** @param {string} sentence @param {boolean} [soon] whether the figures of another step stay until new ones come */
  empty(sentence, soon = false) {
    setText(this.missing, sentence);
    this.content.classList.toggle("old", soon);
    this.content.hidden = !soon || !this.shownInside;
    this.shownSelection = "";
  }

  /** @param {StepInside} inside @param {Run} run @param {InsideSelection} selection @param {boolean} fresh whether it is another step */
  show(inside, run, selection, fresh) {
    const ids = inside.array("token_ids");
    const tokenAt = (/** @type {number} */ position) => visible(run.trace.nameOf(ids[position] ?? 0));
    const allHeads = heads(inside);
    this.by.set(selection.by);
    this.map.set(selection.map);
    this.all.hidden = this.store.state.inside.head === null;
    this.showPicture(inside, selection, allHeads, tokenAt, fresh);
    const row = { row: inside.metadata["row"] ?? "" };
    update(this.proof, el("span", { class: "mono" }, phrase(inside.value("as_run") ? "same row" : "other row", row)),
      ` · ${thousands(inside.positions)} tokens, ${memory(inside.value("kv_bytes"))} of keys and values read`);
    const wait = fresh && performance.now() - this.movedAt < RUSH;
    if (fresh) this.movedAt = performance.now();
    clearTimeout(this.timer);
    const rest = () => this.showRest(inside, selection, allHeads, tokenAt, fresh);
    if (wait) this.timer = window.setTimeout(rest, RUSH); // while steps fly by, only the text and the map follow
    else rest();
  }

  /** @param {ReturnType<typeof stateLayers>} states @param {(position: number) => string} tokenAt the token at a position */
  showStates(states, tokenAt) {
    this.stateSection.hidden = !states.length;
    this.states.show(states.length ? (room) => bands(states, tokenAt, room, statesSentence(states)) : null);
  }

  /**
   * @param {StepInside} inside @param {InsideSelection} selection @param {HeadFigures[]} allHeads
   * @param {(position: number) => string} tokenAt the token at a position @param {boolean} fresh whether it is another step
   */
  showPicture(inside, { map, head }, allHeads, tokenAt, fresh) {
    const rows = lensRows(inside);
    const lens = rows.map(({ id, drawnId, ...row }) => ({ ...row, after: row.layer < 0 ? "" : layerName(inside, row.layer), name: nameIn(inside, id), isStepToken: id === inside.token,
      draws: drawnId === null ? null : nameIn(inside, drawnId), same: drawnId === inside.token }));
    const token = nameIn(inside, inside.token);
    const attending = attends(inside);
    for (const part of [this.mapBox, this.attentionHeading, this.by.element, this.headSentence]) part.hidden = !attending;
    this.pictures.classList.toggle("stateful", !attending);
    this.mapBox.style.setProperty("--head", `${HEAD / 16}rem`);
    this.drawHeads = () => {
      const { type } = this.tower;
      if (attending) this.picture.show(allHeads, [inside.layers, inside.heads], map, head, { pitch: pitchOf(rows.length, type), type });
      this.tower.element.querySelectorAll(".hit").forEach((row, i) => row.classList.toggle("at", head !== null && i === head[0] + 1));
    };
    if (!fresh) this.drawHeads();
    else this.tower.show((room) => tower(lens, token, { ...room, pitch: pitchOf(rows.length, room.type) }, towerSentence(inside, rows)));
    const read = attention(inside, head);
    setText(this.attentionHeading, `Attention of ${head ? headName(head) : "all heads, on average"}`);
    const reads = head ? layersAttending(inside)[head[0]] : attending;
    this.attention.show(reads ? (room) => attentionDrawing(read, tokenAt, room, attentionSentence(read, head, tokenAt)) : null);
    if (fresh) this.showStates(stateLayers(inside), tokenAt);
    const figures = allHeads[(head?.[0] ?? 0) * inside.heads + (head?.[1] ?? 0)];
    setText(this.headSentence, !reads ? `Layer ${head?.[0]} does not attend.` : head && figures ? headSentence(inside, figures, tokenAt(figures.most))
      : `${inside.value("sinks")} of ${thousands(allHeads.filter(({ weight }) => weight > 0).length)} heads give position 0 more than 30% of their weight. `
        + "Point at a head to see what it attends to, and how softmax makes weights of its scores.");
    setText(this.lensSentence, `Logit lens: ${lensSentence(inside, token)} ${stateSentence(inside)}`.trim());
    setText(this.notes, `${attending ? `${phrase("attention is no effect")} ` : ""}${phrase("not said")}`);
  }

  /**
   * @param {StepInside} inside @param {InsideSelection} selection @param {HeadFigures[]} allHeads
   * @param {(position: number) => string} tokenAt the token at a position @param {boolean} fresh whether it is another step
   */
  showRest(inside, selection, allHeads, tokenAt, fresh) {
    this.figures.show(inside, selection, allHeads, tokenAt);
    if (!fresh && selection.part === this.shownPart) return; // another head changes nothing here
    this.shownPart = selection.part;
    const all = components(inside);
    this.chart.show(all, selection.part);
    const place = all.findIndex(({ name }) => name === selection.part);
    const component = all[place];
    const before = all.slice(0, place).reduce((sum, { attribution }) => sum + attribution, 0);
    setText(this.componentSentence, component ? componentSentence(component, before)
      : "Choose a component: an attention layer splits into its heads, a head into positions.");
    update(this.heading, "Attribution of ", el("span", { class: "token" }, nameIn(inside, inside.token)), " over ",
      el("span", { class: "token" }, nameIn(inside, inside.rival)), `, in logits: ${withSign(total(inside), 3)}`);
  }
}

/** @param {InsideSelection} selection as an address has it @param {StepInside} inside @returns {InsideSelection} what this step can show */
const valid = ({ by, map, head, part }, inside) => ({ part, by: tintedBy(inside, { by, map, head, part }),
  map: map in MAPS ? map : "attribution", head: head && head[0] < inside.layers && head[1] < inside.heads ? head : null });

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
