/**
 * Two runs beside each other in figures: where they diverge, what they share after that, what differs in their settings. A
 * part of the panel Branches; the texts are the map above.
 *
 * Knows the result of diff.js. A growing run is compared again every 64 tokens.
 */

import { titleOf } from "../figures/branches.js";
import { changesTable, figuresTable, sentences } from "./compare-tables.js";
import { diff } from "../figures/diff.js";
import { el, replace, setText } from "./dom.js";
import { View } from "./view.js";
/** @import { Run } from "../state/store.js" */

const INTERVAL = 64; // tokens of a growing run

class RunCompare extends View {
  choice = el("select", { id: "other-run", onchange: () => this.store.set({ other: Number(this.choice.value) }) });
  names = el("p", { class: "faint" });
  sentences = el("p");
  figures = el("div", { class: "box" });
  settings = el("div", { class: "box" });
  content = el("div", { hidden: true }, this.names, this.sentences, this.figures, this.settings);
  /** @type {[Run, Run] | null} the older one is A */
  pair = null;
  comparedKey = "";

  build() {
    const label = el("label", { for: this.choice.id }, "Compare the selected run with");
    replace(this, el("p", { class: "row" }, label, this.choice), this.content);
  }

  draw() {
    if (/** @type {HTMLElement} */ (this.parentElement)?.hidden) return;
    const { run } = this.store;
    const other = run && this.findOther(run);
    this.hidden = this.store.state.runs.length < 2;
    this.offer(run, other);
    const isComparable = run?.trace.known && other?.trace.known;
    this.content.hidden = !isComparable;
    if (run && other && isComparable) this.compare(run.id < other.id ? [run, other] : [other, run]);
  }

  /** @param {Run} run @returns {Run | null} the chosen one; else the one shown before, its parent, a fork, or any */
  findOther(run) {
    const { runs, other } = this.store.state;
    const before = this.pair?.map(({ id }) => id) ?? [];
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
      replace(this.choice, ...choices.map((candidate) => el("option", { value: candidate.id }, titleOf(runs, candidate))));
      this.choice.dataset["key"] = key;
    }
    if (other) this.choice.value = String(other.id);
  }

  /** @param {[Run, Run]} pair */
  compare(pair) {
    const key = pair.map(({ id, live, trace: { steps } }) => `${id} ${live ? Math.floor(steps.length / INTERVAL) : `${steps.length}.`}`).join();
    if (key === this.comparedKey && this.pair?.every((run, i) => run === pair[i])) return;
    [this.pair, this.comparedKey] = [pair, key];
    const { runs } = this.store.state;
    const difference = diff(pair[0].trace, pair[1].trace);
    setText(this.names, pair.map((run, i) => `${"AB"[i]}: ${titleOf(runs, run)}`).join(" · "));
    setText(this.sentences, sentences(difference));
    replace(this.figures, figuresTable(difference));
    replace(this.settings, changesTable(difference));
  }
}

customElements.define("run-compare", RunCompare);
