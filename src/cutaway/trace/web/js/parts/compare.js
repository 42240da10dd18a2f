/**
 * The panel Compare: both texts side by side, cut where they diverge and agree again, with their figures.
 *
 * Knows the result of diff.js. A growing run is compared again every 64 tokens; until then its new tokens join the
 * last stretch.
 */

import { clip, inherits, titleOf } from "../figures/branches.js";
import { chip } from "./chip.js";
import { changesTable, figuresTable, sentences } from "./compare-tables.js";
import { diff, stretches } from "../figures/diff.js";
import { el, keepInSight, replace, setText } from "./dom.js";
import { View } from "./view.js";
/** @import { Run } from "../state/store.js" */
/** @import { Stretch } from "../figures/diff.js" */

const INTERVAL = 64; // tokens of a growing run

/** One of the two texts: its chips by step, created once. */
class Side {
  /** @param {string} letter @param {Run} run */
  constructor(letter, run) {
    this.letter = letter;
    this.run = run;
    /** @type {HTMLElement[]} */
    this.chips = [];
  }

  /** @param {Run[]} runs @returns {HTMLElement[]} the chips of the new steps */
  grow(runs) {
    const { trace } = this.run;
    const fresh = trace.steps.slice(this.chips.length).map((step) =>
      chip(trace, step, inherits(runs, this.run, step.index)));
    this.chips.push(...fresh);
    return fresh;
  }
}

class RunCompare extends View {
  choice = el("select", { id: "other-run", onchange: () => this.choose() });
  sentences = el("p");
  figures = el("div", { class: "box" });
  texts = el("div", { class: "texts", tabindex: 0, role: "group",
    "aria-label": "Both texts, token by token" });
  settings = el("div", { class: "box" });
  content = el("div", { hidden: true }, this.sentences, this.figures, this.texts, this.settings);
  /** @type {[Side, Side] | null} */
  sides = null;
  /** @type {{key: string, mark: string, row: HTMLElement}[]} the stretches that `texts` shows */
  rows = [];
  /** @type {string} the lengths of both at the last comparison */
  comparedKey = "";
  /** @type {HTMLElement | undefined} */
  marked;

  build() {
    this.texts.addEventListener("click", (event) => this.handleClick(event));
    const label = el("label", { for: this.choice.id }, "Compare the selected run with");
    replace(this, el("p", { class: "row" }, label, this.choice), this.content);
  }

  draw() {
    if (this.hidden) return;
    const { run } = this.store;
    const other = run && this.findOther(run);
    this.offer(run, other);
    const pair = run && other && run.trace.known && other.trace.known
      ? /** @type {[Run, Run]} */ ([run, other].sort((a, b) => a.id - b.id)) : null;
    this.content.hidden = !pair;
    if (!pair) return;
    if (pair.some((member, i) => member.trace !== this.sides?.[i]?.run.trace)) this.begin(pair);
    this.grow();
    this.mark();
  }

  /** @param {Run} run @returns {Run | null} the chosen one; else the one shown before, its parent, a fork, or any */
  findOther(run) {
    const { runs, other } = this.store.state;
    const before = this.sides?.map((side) => side.run.id) ?? [];
    const forks = runs.filter((fork) => fork.parent === run.id).map((fork) => fork.id);
    const stayed = before.includes(run.id) ? before : [];
    const wishes = [other, ...stayed, run.parent, ...forks, ...runs.map((candidate) => candidate.id)];
    const id = wishes.find((wish) => wish !== null && wish !== run.id && this.store.find(wish));
    return this.store.find(id ?? null);
  }

  /** @param {Run | null} run @param {Run | null} other */
  offer(run, other) {
    const { runs } = this.store.state;
    const choices = runs.filter((candidate) => candidate !== run);
    const key = choices.map((candidate) => `${candidate.id} ${titleOf(runs, candidate)}`).join("\n");
    if (this.choice.dataset["key"] !== key) {
      const none = el("option", {}, "there is no other run yet");
      const options = choices.map((candidate) => el("option", { value: candidate.id }, titleOf(runs, candidate)));
      replace(this.choice, ...options, !choices.length && none);
      this.choice.dataset["key"] = key;
    }
    this.choice.disabled = !choices.length;
    if (other) this.choice.value = String(other.id);
  }

  choose() {
    this.store.set({ other: Number(this.choice.value) });
  }

  /** @param {[Run, Run]} pair the older one on the left, so that selecting the other does not swap them */
  begin(pair) {
    this.sides = [new Side("A", pair[0]), new Side("B", pair[1])];
    this.rows = [];
    this.comparedKey = "";
    const { runs } = this.store.state;
    replace(this.texts, el("div", { class: "stretch heads" }, el("span"),
      ...this.sides.map(({ letter, run }) => el("strong", {}, `${letter}  ${clip(titleOf(runs, run), 80)}`))));
  }

  /** Add the new tokens, and compare again where there are many, or the run has ended. */
  grow() {
    const sides = this.sides;
    if (!sides) return;
    const last = this.rows.at(-1);
    const isApart = last?.mark === "≠";
    if (isApart) sides.forEach((side, i) => last.row.children[i + 1]?.append(...side.grow(this.store.state.runs)));
    const key = sides.map(({ run: { live, trace: { steps } } }) =>
      live && isApart ? Math.floor(steps.length / INTERVAL) : `${steps.length}.`).join();
    if (key === this.comparedKey) return;
    this.comparedKey = key;
    this.compare(sides);
  }

  /** @param {[Side, Side]} sides */
  compare(sides) {
    for (const side of sides) side.grow(this.store.state.runs);
    const [a, b] = sides.map(({ run }) => run);
    if (!a || !b) return;
    const difference = diff(a.trace, b.trace);
    setText(this.sentences, sentences(difference));
    replace(this.figures, figuresTable(difference));
    replace(this.settings, changesTable(difference));
    this.lay(sides, stretches(difference));
  }

  /** @param {[Side, Side]} sides @param {Stretch[]} parts those that are shown already stay as they are */
  lay(sides, parts) {
    const keys = parts.map((stretch) => JSON.stringify(stretch));
    const same = this.rows.findIndex(({ key }, i) => key !== keys[i]);
    for (const { row } of this.rows.splice(same < 0 ? this.rows.length : same)) row.remove();
    for (const [i, stretch] of parts.entries()) {
      if (i < this.rows.length) continue;
      const row = rowOf(sides, stretch);
      this.rows.push({ key: keys[i] ?? "", mark: stretch.mark, row });
      this.texts.append(row);
    }
  }

  mark() {
    const { run, step } = this.store.state;
    const element = this.sides?.find((side) => side.run.id === run)?.chips[step];
    if (element === this.marked) return;
    this.marked?.removeAttribute("aria-current");
    this.marked = element;
    element?.setAttribute("aria-current", "step");
    const heads = this.texts.firstElementChild;
    const head = heads ? heads.getBoundingClientRect().bottom - this.texts.getBoundingClientRect().top : 0;
    if (element) keepInSight(this.texts, element, { head });
  }

  /** @param {Event} event */
  handleClick(event) {
    const at = /** @type {Element} */ (event.target).closest(".chip");
    const side = this.sides?.find(({ chips }) => chips.includes(/** @type {HTMLElement} */ (at)));
    if (!at || !side) return;
    const { run, other } = this.store.state;
    if (side.run.id !== run) {
      this.store.set({ other: other === side.run.id ? run : other });
      this.store.select(side.run.id);
    }
    this.store.goTo(side.chips.indexOf(/** @type {HTMLElement} */ (at)));
  }
}

/** @param {[Side, Side]} sides @param {Stretch} stretch @returns {HTMLElement} a row of both texts */
function rowOf(sides, { mark, a, b }) {
  const isEqual = mark !== "≠";
  const cells = [a, b].map(([from, to], i) =>
    el("div", { class: "side" }, ...(sides[i]?.chips.slice(from, to) ?? [])));
  const count = a[1] - a[0];
  const title = isEqual ? `${count} equal tokens, A from ${a[0]}, B from ${b[0]}` : "different";
  return el("div", { class: `stretch ${isEqual ? "equal" : "apart"}` },
    el("span", { class: "mark", title, "aria-label": title, role: "img" },
      isEqual ? `[${mark}]` : mark), ...cells);
}

customElements.define("run-compare", RunCompare);
