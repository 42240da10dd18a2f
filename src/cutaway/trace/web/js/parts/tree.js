/**
 * The panel Branches: a line for each run, as long as its text, which leaves its parent's line at the fork. Below, the
 * tree as trace files, and two runs compared in figures.
 *
 * Knows which runs there are and which is selected; tree-drawing.js knows how to draw them.
 */

import { branches, family, lineage, parentOf, titleOf } from "../figures/branches.js";
import { button, el, setAttributes, replace, setText, svg } from "./dom.js";
import "./compare.js";
import { exportRuns } from "../state/export.js";
import { countFrom1, memory, visible } from "../figures/numbers.js";
import { savingLink } from "./save.js";
import { sentence } from "../state/session.js";
import { BranchNode, ChosenPath, axis, beginningOf, scaleFor } from "./tree-drawing.js";
import { View } from "./view.js";
/** @import { Branch } from "../figures/branches.js" */
/** @import { Run } from "../state/store.js" */
/** @import { Candidate } from "../state/trace.js" */
/** @import { Scale } from "./tree-drawing.js" */

class BranchTree extends View {
  marks = svg("g", { class: "axis", "aria-hidden": "true" });
  chosenPath = new ChosenPath();
  picture = svg("svg", { role: "group", "aria-label": "Branches" }, this.marks, this.chosenPath.group);
  box = el("div", { class: "box" }, this.picture);
  heading = el("strong");
  beginning = el("span", { class: "faint" });
  first = button("", () => this.branchHere(), { class: "primary" });
  fork = button("Go to the fork", () => this.store.run && this.store.goTo(this.store.run.at));
  exporting = button("Export this tree", () => this.export());
  files = el("ul", { class: "files" });
  /** @type {Map<number, BranchNode>} by run, in the order of the lanes */
  nodes = new Map();
  width = 600;

  build() {
    const about = el("p", {}, this.heading, " ", this.beginning);
    const buttons = el("div", { class: "row" }, this.first, this.fork, this.exporting);
    const compare = /** @type {View} */ (document.createElement("run-compare"));
    replace(this, this.box, about, buttons, this.files, compare);
    compare.attach(this.store, this.session);
    new ResizeObserver(([entry]) => {
      this.width = entry?.contentRect.width || this.width;
      this.store.announce();
    }).observe(this.box);
  }

  draw() {
    if (this.hidden) return;
    const { runs, run: id, step } = this.store.state;
    const lanes = branches(runs);
    const scale = scaleFor(lanes, this.width);
    this.keep(lanes);
    this.measure(scale);
    for (const branch of lanes) {
      this.nodes.get(branch.run.id)?.draw(branch, scale, runs, branch.run.id === id);
    }
    const { run } = this.store;
    const path = run ? lineage(runs, run) : [];
    this.chosenPath.draw(path.flatMap((ancestor) => lanes.find((b) => b.run === ancestor) ?? []), scale, step);
    this.describe(runs, run);
  }

  /** @param {Branch[]} lanes create nodes for the new ones */
  keep(lanes) {
    const ids = lanes.map(({ run }) => run.id);
    if (ids.join() === [...this.nodes.keys()].join()) return;
    this.nodes = new Map(ids.map((id) =>
      [id, this.nodes.get(id) ?? new BranchNode(() => this.store.select(id))]));
    const groups = [...this.nodes.values()].map(({ group }) => group);
    replace(this.picture, this.marks, ...groups, this.chosenPath.group);
    replace(this.files); // these are of another tree
  }

  /** @param {Scale} scale */
  measure(scale) {
    const size = { width: scale.width, height: scale.height, "data-end": scale.end };
    const isUnchanged = Object.entries(size)
      .every(([name, value]) => this.picture.getAttribute(name) === String(value));
    if (isUnchanged) return;
    setAttributes(this.picture, size);
    replace(this.marks, ...axis(scale));
  }

  /** @param {Run[]} runs @param {Run | null} run */
  describe(runs, run) {
    this.box.hidden = !runs.length;
    setText(this.heading, run ? titleOf(runs, run) : "");
    setText(this.beginning, run ? beginningOf(run)
      : "Each run is a line here. Choose another token at a step, and a branch begins there.");
    const parent = run && parentOf(runs, run);
    const rival = this.rival;
    this.first.hidden = runs.length > 1 || !rival;
    this.fork.hidden = runs.length < 2;
    this.exporting.hidden = !runs.length;
    if (run && rival) setText(this.first, `Branch at step ${countFrom1(this.store.state.step)}: ${visible(run.trace.nameOf(rival.id))}`);
    this.fork.disabled = !parent || this.store.state.step === run?.at;
    this.exporting.disabled = !run || family(runs, run).some((member) => member.live || !member.trace.known);
  }

  /** @returns {Candidate | null} the likeliest other token of the selected step, with which a branch can begin; null: there is none, or nothing that computes one */
  get rival() {
    const { run, state } = this.store;
    const step = run?.trace.steps[state.step];
    if (!run || !step || run.live || !state.about || step.pass_index !== undefined || this.session.foreign(run)) return null;
    return step.candidates.filter(({ id }) => id !== step.token_id).reduce((/** @type {Candidate | null} */ best, c) =>
      (best && best.rank < c.rank ? best : c), null);
  }

  branchHere() {
    const { run, state } = this.store;
    if (run && this.rival) this.session.fork(run, state.step, this.rival.id);
  }

  /** List the files as links, since browsers ask before a page saves several files at once. */
  async export() {
    const { run, state } = this.store;
    if (!run) return;
    for (const link of this.files.querySelectorAll("a")) URL.revokeObjectURL(link.href);
    try {
      const files = await exportRuns(family(state.runs, run));
      replace(this.files, ...files.map(({ run: source, name, bytes, sha256 }) =>
        el("li", {}, savingLink(name, bytes), el("span", { class: "faint" },
          ` ${memory(bytes.length)} · ${titleOf(state.runs, source)} · SHA-256 ${sha256.slice(0, 12)}…`))));
    } catch (error) {
      this.store.set({ notice: sentence(error) });
    }
  }
}

customElements.define("branch-tree", BranchTree);
