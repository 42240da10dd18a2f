/**
 * The folded tables of the panel Inside: positions, scores, states, heads, the lens, and what the chosen component consists of.
 * While they are folded they are not filled.
 */

import { attention, headName, stateLayers } from "../figures/attention.js";
import { MOST_ROWS, components, layerName, lensRows, sortByAttribution, sortedPlaces, total } from "../figures/inside.js";
import { withSign } from "../figures/numbers.js";
import { el, figure, update } from "./dom.js";
import { COMPONENTS, EXPERTS, HEADS, LENS, PLACES, SCORES, STATES, componentRows, headRows, lensTable, otherPlaces, placeRows,
  scoreRows, stateRows, table } from "./inside-tables.js";
/** @import { HeadFigures } from "../figures/inside.js" */
/** @import { StepInside } from "../state/step-inside.js" */
/** @import { InsideSelection } from "../state/store.js" */

export class InsideFigures {
  lens = el("section");
  places = el("section");
  heads = el("section");
  states = el("section");
  components = el("section");
  opened = el("section");

  /** @param {() => void} opened called when the tables are unfolded, or folded */
  constructor(opened) {
    this.element = el("details", { ontoggle: opened }, el("summary", {}, "Figures"),
      el("div", { class: "pair" }, this.lens, this.places, this.heads, this.states, this.components, this.opened));
  }

  /**
   * @param {StepInside} inside @param {InsideSelection} selection @param {HeadFigures[]} allHeads
   * @param {(position: number) => string} tokenAt the token at a position
   */
  show(inside, selection, allHeads, tokenAt) {
    if (!this.element.open) return;
    this.showPlaces(inside, selection, tokenAt);
    const states = stateLayers(inside);
    update(this.states, ...(states.length ? [el("h3", {}, "States"), table("States", STATES, stateRows(states, tokenAt))] : []));
    update(this.heads, el("h3", {}, "Heads with the largest attribution"), table("The heads with the largest attribution", HEADS,
      headRows(sortByAttribution(allHeads).slice(0, MOST_ROWS), tokenAt, selection.head)));
    update(this.lens, el("h3", {}, "Logit lens"),
      table("The lens", LENS, lensTable(inside, lensRows(inside))));
    const all = components(inside);
    update(this.components, el("h3", {}, "Components"), table("Components", COMPONENTS, componentRows(all, total(inside))));
    const isChosen = all.some(({ name }) => name === selection.part);
    update(this.opened, ...(isChosen ? [el("h3", {}, selection.part ?? ""), ...this.split(inside, selection, allHeads, tokenAt)] : []));
  }

  /** @param {StepInside} inside @param {InsideSelection} selection @param {(position: number) => string} tokenAt */
  showPlaces(inside, { by, head }, tokenAt) {
    const positions = sortedPlaces(inside, by, head);
    const source = head || by === "weight" ? headName(head) : "sum of all heads";
    update(this.places, el("h3", {}, `${by === "weight" ? "Attention weight" : "Attribution"} by position, ${source}`),
      table("Positions", PLACES, [...placeRows(positions, tokenAt), ...(head ? [] : otherPlaces(positions))]),
      ...(head ? [el("h3", {}, `Before and after softmax, ${source}`),
        table("Scores", SCORES, scoreRows(attention(inside, head).rows, tokenAt))] : []));
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
      return [table(`Heads of ${layerName(inside, layer)}`, HEADS,
        headRows(sortByAttribution(allHeads.filter((figures) => figures.layer === layer)), tokenAt, head)),
      el("p", {}, `Rounding to 8 bits within it: ${withSign(inside.array("rounded")[layer] ?? 0, 4)}.`), ...positionTables];
    }
    if (experts.length && part?.endsWith(".mlp")) {
      return [table(`Experts of ${layerName(inside, layer)}`, EXPERTS, experts.map(([id, share, attribution]) =>
        el("tr", {}, ...[id, share.toFixed(3), withSign(attribution, 3)].map((text) => figure(text)))))];
    }
    return [el("p", { class: "faint" }, "This component has no heads.")];
  }
}
