/**
 * A waterfall chart of the logit attribution: component by component, from 0 to the difference of two logits.
 * The left and right arrow keys choose a component.
 */

import { withSign } from "../figures/numbers.js";
import { el, typeScale } from "./dom.js";
import { fitCanvas, onScheme, stroke } from "./inside-map.js";
/** @import { Component } from "../figures/inside.js" */

const HIGH = 170;
const SIDE = 46; // for the figures on the left, in type of the usual size
const FOOT = 16; // for the layer numbers, likewise

export class AttributionChart {
  canvas = el("canvas", { tabindex: 0, role: "img", "aria-describedby": "component-sentence",
    "aria-label": "Attribution by component; the left and right arrow keys choose one" });
  /** @type {Component[]} */
  components = [];
  /** @type {string | null} */
  chosenName = null;
  width = 600;

  /** @param {(name: string) => void} choose */
  constructor(choose) {
    this.choose = choose;
    this.box = el("div", {}, this.canvas);
    this.canvas.addEventListener("keydown", (event) => this.handleKey(event));
    this.canvas.addEventListener("click", (event) => this.handleClick(event));
    new ResizeObserver(([entry]) => this.handleResize(entry?.contentRect.width ?? 0)).observe(this.box);
    onScheme(() => this.draw());
  }

  /** @param {number} width */
  handleResize(width) {
    if (!width || Math.floor(width) === this.width) return;
    this.width = Math.floor(width);
    this.draw();
  }

  /** @param {Component[]} components @param {string | null} chosenName */
  show(components, chosenName) {
    this.components = components;
    this.chosenName = chosenName;
    this.draw();
  }

  /** @returns {number} pixels for the figures on the left */
  get side() {
    return SIDE * typeScale();
  }

  /** @returns {number} pixels for the layer numbers */
  get foot() {
    return FOOT * typeScale();
  }

  /** @returns {number} pixels of a component */
  get wide() {
    return (this.width - this.side) / Math.max(this.components.length, 1);
  }

  draw() {
    const pen = fitCanvas(this.canvas, this.width, HIGH + this.foot);
    if (!pen || !this.components.length) return;
    const style = getComputedStyle(this.canvas);
    const colour = (/** @type {string} */ name) => style.getPropertyValue(name);
    const sums = this.components.reduce((/** @type {number[]} */ all, { attribution }) => [...all, (all.at(-1) ?? 0) + attribution], [0]);
    const [low, high] = [Math.min(...sums), Math.max(...sums)];
    const y = (/** @type {number} */ value) => 8 + ((high - value) / (high - low || 1)) * (HIGH - 16);
    pen.font = `${10 * typeScale()}px ${style.fontFamily}`;
    pen.textBaseline = "middle";
    pen.fillStyle = style.color;
    pen.fillText("0", 0, y(0));
    const end = sums.at(-1) ?? 0;
    if (Math.abs(y(end) - y(0)) > 12) pen.fillText(withSign(end), 0, y(end));
    stroke(pen, colour("--line"), [this.side, y(0)], [this.width, y(0)]);
    this.components.forEach((component, i) => this.bar(pen, component, i, [y(sums[i] ?? 0), y(sums[i + 1] ?? 0)], colour));
    this.components.forEach(({ name }, i) => this.label(pen, name, i, style.color));
  }

  /**
   * @param {CanvasRenderingContext2D} pen @param {Component} component @param {number} i
   * @param {[number, number]} ends @param {(name: string) => string} colour
   */
  bar(pen, { name, attribution }, i, [from, to], colour) {
    const x = this.side + this.wide * i;
    const wide = Math.max(this.wide - 1, 1);
    const [top, high] = [Math.min(from, to), Math.max(Math.abs(to - from), 1)];
    if (name === this.chosenName) {
      pen.fillStyle = colour("--chosen");
      pen.fillRect(x - 1, 0, this.wide + 1, HIGH);
    }
    pen.fillStyle = attribution < 0 ? colour("--negative") : colour("--bar");
    pen.fillRect(x, top, wide, high);
    if (attribution < 0) { // hatched, so that the sign does not depend on colour
      for (let at = top + 2; at < top + high; at += 4) stroke(pen, colour("--paper"), [x, at], [x + wide, at]);
    }
    if (name === this.chosenName) {
      pen.strokeStyle = colour("--accent");
      pen.lineWidth = 2;
      pen.strokeRect(x - 1, top - 1, wide + 2, high + 2);
    }
  }

  /** @param {CanvasRenderingContext2D} pen @param {string} name @param {number} i @param {string} ink */
  label(pen, name, i, ink) {
    const layer = /^L(\d+)\.attn$/.exec(name)?.[1];
    const interval = this.wide * 2 < 24 * typeScale() ? (this.wide * 2 < 6 * typeScale() ? 10 : 5) : 1;
    if (layer === undefined || Number(layer) % interval) return;
    pen.fillStyle = ink;
    pen.fillText(`L${layer}`, this.side + this.wide * i, HIGH + this.foot / 2);
  }

  /** @param {KeyboardEvent} event */
  handleKey(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    const at = this.components.findIndex(({ name }) => name === this.chosenName);
    this.go(at < 0 ? 0 : at + by);
  }

  /** @param {MouseEvent} event */
  handleClick(event) {
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    this.go(Math.floor((x - this.side) / this.wide));
  }

  /** @param {number} at */
  go(at) {
    const component = this.components[Math.max(0, Math.min(at, this.components.length - 1))];
    if (component) this.choose(this.chosenName = component.name);
  }
}
