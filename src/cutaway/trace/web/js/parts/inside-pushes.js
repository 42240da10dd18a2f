/**
 * From nothing to the difference of two logits: what each part pushed, one after the other. Arrows
 * left and right choose a part.
 */

import { signed } from "../figures/numbers.js";
import { el } from "./dom.js";
import { fitted, stroke } from "./inside-map.js";
import { onScheme } from "./tint.js";
/** @import { Part } from "../figures/inside.js" */

const HIGH = 170;
const SIDE = 46; // for the figures at the left
const FOOT = 16; // for the layers' numbers

export class PushFall {
  canvas = el("canvas", { tabindex: 0, role: "img", "aria-describedby": "part-sentence",
    "aria-label": "Attributions, part by part; arrows left and right choose one" });
  /** @type {Part[]} */
  parts = [];
  /** @type {string | null} */
  chosen = null;
  width = 600;

  /** @param {(part: string) => void} choose */
  constructor(choose) {
    this.choose = choose;
    this.box = el("div", { class: "fall" }, this.canvas);
    this.canvas.addEventListener("keydown", (event) => this.pressed(event));
    this.canvas.addEventListener("click", (event) => this.clicked(event));
    new ResizeObserver(([entry]) => this.resized(entry?.contentRect.width ?? 0)).observe(this.box);
    onScheme(() => this.draw());
  }

  /** @param {number} width */
  resized(width) {
    if (!width || Math.floor(width) === this.width) return;
    this.width = Math.floor(width);
    this.draw();
  }

  /** @param {Part[]} parts @param {string | null} chosen */
  show(parts, chosen) {
    this.parts = parts;
    this.chosen = chosen;
    this.draw();
  }

  /** @returns {number} */
  get wide() {
    return (this.width - SIDE) / Math.max(this.parts.length, 1);
  }

  draw() {
    const pen = fitted(this.canvas, this.width, HIGH + FOOT);
    if (!pen || !this.parts.length) return;
    const style = getComputedStyle(this.canvas);
    const colour = (/** @type {string} */ name) => style.getPropertyValue(name);
    const sums = this.parts.reduce((/** @type {number[]} */ all, { push }) => [...all, (all.at(-1) ?? 0) + push], [0]);
    const [low, high] = [Math.min(...sums), Math.max(...sums)];
    const y = (/** @type {number} */ value) => 8 + ((high - value) / (high - low || 1)) * (HIGH - 16);
    pen.font = `10px ${style.fontFamily}`;
    pen.textBaseline = "middle";
    pen.fillStyle = style.color;
    pen.fillText("0", 0, y(0));
    const end = sums.at(-1) ?? 0;
    if (Math.abs(y(end) - y(0)) > 12) pen.fillText(signed(end), 0, y(end));
    stroke(pen, colour("--line"), [SIDE, y(0)], [this.width, y(0)]);
    this.parts.forEach((part, i) => this.bar(pen, part, i, [y(sums[i] ?? 0), y(sums[i + 1] ?? 0)], colour));
    this.parts.forEach(({ name }, i) => this.label(pen, name, i, style.color));
  }

  /**
   * @param {CanvasRenderingContext2D} pen @param {Part} part @param {number} i
   * @param {[number, number]} ends @param {(name: string) => string} colour
   */
  bar(pen, { name, push }, i, [from, to], colour) {
    const x = SIDE + this.wide * i;
    const wide = Math.max(this.wide - 1, 1);
    const [top, high] = [Math.min(from, to), Math.max(Math.abs(to - from), 1)];
    if (name === this.chosen) {
      pen.fillStyle = colour("--chosen");
      pen.fillRect(x - 1, 0, this.wide + 1, HIGH);
    }
    pen.fillStyle = push < 0 ? colour("--warn") : colour("--bar");
    pen.fillRect(x, top, wide, high);
    if (push < 0) { // with lines across, so that it is not told by its colour
      for (let at = top + 2; at < top + high; at += 4) stroke(pen, colour("--paper"), [x, at], [x + wide, at]);
    }
    if (name === this.chosen) {
      pen.strokeStyle = colour("--accent");
      pen.lineWidth = 2;
      pen.strokeRect(x - 1, top - 1, wide + 2, high + 2);
    }
  }

  /** @param {CanvasRenderingContext2D} pen @param {string} name @param {number} i @param {string} ink */
  label(pen, name, i, ink) {
    const layer = /^L(\d+)\.attn$/.exec(name)?.[1];
    const every = this.wide * 2 < 24 ? (this.wide * 2 < 6 ? 10 : 5) : 1;
    if (layer === undefined || Number(layer) % every) return;
    pen.fillStyle = ink;
    pen.fillText(`L${layer}`, SIDE + this.wide * i, HIGH + FOOT / 2);
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    const at = this.parts.findIndex(({ name }) => name === this.chosen);
    this.go(at < 0 ? 0 : at + by);
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    this.go(Math.floor((x - SIDE) / this.wide));
  }

  /** @param {number} at */
  go(at) {
    const part = this.parts[Math.max(0, Math.min(at, this.parts.length - 1))];
    if (!part) return;
    this.chosen = part.name;
    this.choose(part.name);
  }
}
