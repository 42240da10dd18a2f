/**
 * The drawing of the tree of branches: its scale and axis, and a node for each run.
 *
 * Knows SVG. A node is created once; later only its attributes and texts change.
 */

import { clip, countFrom1 } from "../figures/numbers.js";
import { forkOf, meanBits, scaleEnd, titleOf } from "../figures/branches.js";
import { setAttributes, setText, svg, typeScale } from "./dom.js";
/** @import { Branch } from "../figures/branches.js" */
/** @import { Run } from "../state/store.js" */

const LEFT = 16;
const RIGHT = 116; // for the text at the end of a line, at the usual size of the type
const TOP = 44;
const LANE = 44;
const BEND = 8;
const LETTER = 7.3; // approximate pixels of a character

/** @typedef {{end: number, width: number, height: number, x: (step: number) => number}} Scale */

/** @param {Branch[]} branches @param {number} width in pixels @returns {Scale} */
export function scaleFor(branches, width) {
  const end = scaleEnd(Math.max(0, ...branches.map(({ to }) => to)));
  const right = RIGHT * typeScale();
  const room = Math.max(width - LEFT - right, 160);
  return { end, width: LEFT + room + right, height: TOP + branches.length * LANE - 16,
    x: (step) => LEFT + (step / end) * room };
}

/** @param {Scale} scale @returns {SVGElement[]} vertical lines at some steps */
export function axis({ end, height, x }) {
  const lines = [0, end / 2 - 1, end - 1].flatMap((step, i) => [
    svg("line", { x1: x(step), x2: x(step), y1: 18, y2: height }),
    svg("text", { x: x(step) + (i < 2 ? 3 : -3), y: 14, class: i < 2 ? "" : "last" },
      `${i ? "" : "step "}${countFrom1(step)}`),
  ]);
  return [...lines, svg("text", { x: x(end) + 9, y: 14 }, "tokens · mean")];
}

/** @param {number} lane @returns {number} */
const y = (lane) => TOP + lane * LANE;

/** @param {number} lane @returns {string} a path down to the lane, and to the right */
const bend = (lane) => `V${y(lane) - BEND}q0 ${BEND} ${BEND} ${BEND}`;

/** The path of the selected run, from the root's first token to its own last, and the selected step. */
export class ChosenPath {
  line = svg("path", { class: "line" });
  step = svg("circle", { class: "at", r: 6 });
  group = svg("g", { class: "path", "aria-hidden": "true" }, this.line, this.step);

  /** @param {Branch[]} parts from the root down to the run itself @param {Scale} scale
   *  @param {number} step */
  draw(parts, scale, step) {
    const [root] = parts;
    const last = parts.at(-1);
    setAttributes(this.group, { visibility: last ? "visible" : "hidden" });
    if (!root || !last) return;
    const turns = parts.slice(1).map(({ from, lane }) => `H${scale.x(from)}${bend(lane)}`);
    setAttributes(this.line, { d: `M${scale.x(0)} ${y(root.lane)}${turns.join("")}H${scale.x(last.to)}` });
    const holder = parts.findLast(({ from }) => from <= step) ?? root;
    setAttributes(this.step, { cx: scale.x(Math.min(step, holder.to)), cy: y(holder.lane) });
  }
}

export class BranchNode {
  title = svg("title");
  reach = svg("path", { class: "reach" });
  line = svg("path", { class: "line" });
  tip = svg("circle", { class: "tip", r: 4 });
  name = svg("text", { class: "name" });
  length = svg("text", { class: "length", "aria-hidden": "true" }); // the title has it for screen readers

  /** @param {() => void} choose */
  constructor(choose) {
    this.group = svg("g", { class: "branch", role: "button", tabindex: 0, onclick: choose,
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        choose();
        event.preventDefault();
        event.stopPropagation(); // elsewhere Enter branches
      } },
    this.title, this.reach, this.line, this.tip, this.name, this.length);
  }

  /** @param {Branch} branch @param {Scale} scale @param {Run[]} runs @param {boolean} isChosen */
  draw({ run, lane, above, from, to }, scale, runs, isChosen) {
    const [start, end] = [scale.x(from), scale.x(to)];
    const path = above === null ? `M${start} ${y(lane)}H${end}`
      : `M${start} ${y(above)}${bend(lane)}H${Math.max(end, start + BEND)}`;
    const mean = meanBits(run);
    const figures = mean === null ? "" : `${run.trace.steps.length} · ${mean.toFixed(2)} bits`;
    setAttributes(this.reach, { d: path });
    setAttributes(this.line, { d: path });
    setAttributes(this.tip, { cx: Math.max(end, start + (above === null ? 0 : BEND)), cy: y(lane) });
    setAttributes(this.name, { x: start + (above === null ? 0 : 6), y: y(lane) - 8 });
    setAttributes(this.length, { x: Math.max(end, start + BEND) + 9, y: y(lane) + 4 });
    const room = Math.floor((scale.width - start) / (LETTER * typeScale()));
    setText(this.name, clip(above === null ? titleOf(runs, run) : forkOf(run), room));
    setText(this.length, `${figures}${run.live ? " …" : ""}`);
    setAttributes(this.group, { "aria-pressed": isChosen,
      class: `branch${isChosen ? " chosen" : ""}${run.live ? " live" : ""}` });
    setText(this.title, description(run, titleOf(runs, run), mean));
  }
}

/** @param {Run} run @param {string} name @param {number | null} mean
 *  @returns {string} for pointers and for screen readers */
function description(run, name, mean) {
  // Leave out the length of a growing run: a screen reader would read it out at every token.
  if (run.live) return `${name}, being generated`;
  const bits = mean === null ? "" : `, mean surprise ${mean.toFixed(2)} bits`;
  return `${name}, ${run.trace.steps.length} tokens${bits}\n${beginningOf(run)}`;
}

/** @param {Run} run @returns {string} how its text begins */
export const beginningOf = ({ trace: { steps } }) =>
  clip(steps.slice(0, 60).map((step) => step.text).join("").trim(), 160);
