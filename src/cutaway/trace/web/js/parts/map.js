/**
 * The text as a map of several runs: common stretches stand once, with the selected run's tokens; where the texts part, each
 * line has a text of its own, the original above. drawings/map.js has the tracks.
 *
 * Knows lines with their chips, and which pieces are laid out already. A growing run is laid out again every 64 tokens; until
 * then its new tokens join its last piece.
 */

import { clip } from "../figures/numbers.js";
import { forkOf, parentOf } from "../figures/branches.js";
import { blocksOf } from "../figures/lines.js";
import { joinedTracks, ownTracks, turns, widthOf } from "../drawings/map.js";
import { el, renderMark, svg } from "./dom.js";
import { Flow } from "./flow.js";
/** @import { Mark } from "../drawings/marks.js" */
/** @import { Block } from "../figures/lines.js" */
/** @import { Line } from "./strip.js" */
/** @import { Run } from "../state/store.js" */

const INTERVAL = 64; // tokens of a growing run
const TURN = 12; // pixels in which strands part or join

export class TextMap {
  /** @type {{key: string, rows: HTMLElement[]}[]} the pieces that are laid out */
  pieces = [];
  /** @type {Flow[]} the last piece, by line */
  open = [];
  /** @type {number[]} how many tokens of each line are laid out */
  lengths = [];
  laidKey = "";

  /**
   * @param {HTMLElement} element @param {HTMLElement} prompt before all of them
   * @param {Line[]} lines @param {number} selected one of them @param {(id: number) => void} select a run
   */
  constructor(element, prompt, lines, selected, select) {
    this.element = element;
    this.prompt = prompt;
    this.lines = lines;
    this.selected = selected;
    this.select = select;
  }

  /** @param {Run[]} runs lay out new tokens */
  grow(runs) {
    const key = this.lines.map(({ run, chips }) =>
      (run.live && this.open.length && chips.length > run.at + 1 ? Math.floor(chips.length / INTERVAL) : `${chips.length}.`)).join();
    if (key !== this.laidKey) this.lay(runs);
    this.laidKey = key;
    this.lines.forEach(({ run, chips }, i) => {
      this.open[i]?.take(run.trace, chips, this.lengths[i] ?? 0, chips.length);
      this.lengths[i] = chips.length;
    });
  }

  /** @param {Run[]} runs */
  lay(runs) {
    const blocks = blocksOf(this.lines.map(({ run, chips }) => run.trace.outputIds.slice(0, chips.length)));
    const keys = blocks.map((block, i) => JSON.stringify([block, i === blocks.length - 1]));
    const same = this.pieces.findIndex(({ key }, i) => key !== keys[i]);
    for (const { rows } of this.pieces.splice(same < 0 ? this.pieces.length : same)) rows.forEach((row) => row.remove());
    for (let i = this.pieces.length; i < blocks.length; i++) {
      const rows = this.rowsOf(blocks, i, runs);
      this.element.append(...rows);
      this.pieces.push({ key: keys[i] ?? "", rows });
    }
    this.lengths = this.lines.map(({ chips }) => chips.length);
  }

  /** @param {Block[]} blocks @param {number} at @param {Run[]} runs @returns {HTMLElement[]} */
  rowsOf(blocks, at, runs) {
    const block = /** @type {Block} */ (blocks[at]);
    const count = this.lines.length;
    const last = at === blocks.length - 1;
    const first = blocks.findIndex((piece) => !piece.joined) === at;
    if (block.joined) {
      this.open = [];
      const text = this.flowOf(block, this.selected, at ? undefined : this.prompt).element;
      return [row("joined", joinedTracks(count), count, text), ...(last ? [] : [turn(count, true)])];
    }
    const flows = this.lines.map((_, i) => this.flowOf(block, i, this.stationOf(i, first, runs)));
    this.open = flows;
    const prompt = at ? [] : [row("joined", joinedTracks(count), count, el("div", {}, this.prompt)), turn(count, true)];
    return [...prompt, ...flows.map(({ element }, i) => row(`apart${i === this.selected ? " own" : ""}`, ownTracks(count, i, last), count, element)),
      ...(last ? [] : [turn(count, false)])];
  }

  /** @param {Block} block @param {number} i @param {HTMLElement} [before] what its first line begins with @returns {Flow} */
  flowOf({ spans }, i, before) {
    const { run, chips } = /** @type {Line} */ (this.lines[i]);
    const [from, to] = spans[i] ?? [0, 0];
    const flow = new Flow(el("div"), before);
    flow.take(run.trace, chips, from, to);
    return flow;
  }

  /** @param {number} i @param {boolean} isNamed whether it shows the line's name @param {Run[]} runs @returns {HTMLElement} a button that selects the line */
  stationOf(i, isNamed, runs) {
    const { run } = /** @type {Line} */ (this.lines[i]);
    const name = clip(parentOf(runs, run) ? forkOf(run) : i ? `run ${run.id}` : "original", 32);
    return el("button", { type: "button", class: `station line-${i}${isNamed ? " named" : ""}`, "aria-pressed": String(i === this.selected),
      "aria-label": isNamed ? name : `${name}, continued`, title: `${name}: select this run (t)`, onclick: () => this.select(run.id) }, isNamed ? name : "");
  }
}

/** @param {string} kind @param {Mark[]} tracks @param {number} count of lines @param {HTMLElement} text @returns {HTMLElement} */
const row = (kind, tracks, count, text) => el("div", { class: `row-of ${kind}`, style: { "--gutter": `${widthOf(count)}px` } }, gutter(tracks), text);

/** @param {number} count @param {boolean} parts @returns {HTMLElement} */
const turn = (count, parts) => el("div", { class: "row-of turn" }, gutter(turns(count, TURN, parts)));

/** @param {Mark[]} tracks */
const gutter = (tracks) => svg("svg", { class: "tracks", "aria-hidden": "true" }, ...tracks.map(renderMark));
