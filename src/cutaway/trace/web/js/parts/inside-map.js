/**
 * A map of all attention heads: a row for each layer, the first at the bottom, as in the tower beside it; a column for each
 * head. Arrow keys move between cells; the mouse points at them.
 */

import { LEVELS, cells } from "../figures/inside.js";
import { heat } from "../figures/catalogue.js";
import { el, replace, scale, setAttributes } from "./dom.js";
/** @import { HeadFigures, MapBy } from "../figures/inside.js" */

const WIDTH = 340; // pixels at most
const LEFT = 24; // for the layer numbers, in type of the usual size
const SCHEME = matchMedia("(prefers-color-scheme: dark)");
const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] };

export class HeadsMap {
  canvas = el("canvas", { tabindex: 0, role: "img", "aria-describedby": "heads-sentence" });
  legend = el("p", { class: "legend faint" });
  /** @type {HeadFigures[]} */
  figures = [];
  layers = 0;
  heads = 0;
  /** @type {[number, number]} */
  at = [0, 0];
  /** @type {[number, number] | null} */
  chosenHead = null;
  /** @type {MapBy} */
  by = "attribution";
  pitch = 14;
  type = 1;
  /** @type {ReturnType<typeof styleOf> | null} */
  style = null;

  /** @param {(head: [number, number]) => void} choose @param {(head: [number, number] | null) => void} point */
  constructor(choose, point) {
    this.choose = choose;
    this.point = point;
    this.canvas.addEventListener("keydown", (event) => this.handleKey(event));
    this.canvas.addEventListener("click", (event) => this.choose(this.chosenHead = this.at = this.headAt(event)));
    this.canvas.addEventListener("pointermove", (event) => event.pointerType === "mouse" && this.point(this.headAt(event)));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    onScheme(() => {
      this.style = null;
      this.draw();
    });
  }

  /**
   * @param {HeadFigures[]} figures @param {[number, number]} shape layers and heads
   * @param {MapBy} by @param {[number, number] | null} chosenHead
   * @param {{pitch: number, type: number}} room pixels of a row; how much larger than usual the type is
   */
  show(figures, shape, by, chosenHead, { pitch, type }) {
    this.pitch = pitch;
    this.type = type;
    this.figures = figures;
    this.layers = shape[0];
    this.heads = shape[1];
    this.by = by;
    this.chosenHead = chosenHead;
    this.at = chosenHead ?? this.at;
    setAttributes(this.canvas, {
      "aria-label": `Heads by ${by}: ${shape[0]} layers up, ${shape[1]} heads across; arrow keys choose one` });
    this.draw();
  }

  /** @returns {number} pixels for the layer numbers */
  get left() {
    return LEFT * this.type;
  }

  /** @returns {{wide: number, high: number}} of a cell, in pixels */
  get cell() {
    const wide = Math.max(4, Math.min(30, Math.floor((WIDTH - this.left) / this.heads)));
    return { wide, high: this.pitch };
  }

  /** @param {number} layer @returns {number} y of its row, a whole pixel */
  top(layer) {
    return Math.round(this.pitch * (this.layers - 1 - layer));
  }

  draw() {
    const { wide, high } = this.cell;
    const [width, height] = [this.left + wide * this.heads, high * this.layers];
    const pen = fitCanvas(this.canvas, width, height);
    if (!pen) return;
    const style = (this.style ??= styleOf(this.canvas));
    this.explain();
    pen.fillStyle = style.line; // lines between the cells: pale cells look like the background
    pen.fillRect(this.left, 0, wide * this.heads - 1, high * this.layers - 1);
    pen.font = `${9 * this.type}px ${style.font}`;
    pen.textBaseline = "middle";
    cells(this.figures, this.by).forEach((level, i) => {
      const { layer, head } = /** @type {HeadFigures} */ (this.figures[i]);
      const [x, y] = [this.left + wide * head, this.top(layer)];
      const tall = this.top(layer - 1) - y - 1;
      pen.clearRect(x, y, wide - 1, tall);
      pen.fillStyle = heat(Math.abs(level) / LEVELS);
      pen.fillRect(x, y, wide - 1, tall);
      if (level < 0) stroke(pen, style.faint, [x + 1, y + tall - 1], [x + wide - 2, y + 1]);
    });
    pen.fillStyle = style.ink;
    const interval = this.layers > 12 ? 5 : Math.ceil((11 * this.type) / high);
    for (let layer = 0; layer < this.layers; layer += interval) pen.fillText(`L${layer}`, 0, high * (this.layers - layer - 0.5));
    if (this.chosenHead) {
      const [layer, head] = this.chosenHead;
      pen.strokeStyle = style.accent;
      pen.lineWidth = 2;
      pen.strokeRect(this.left + wide * head, this.top(layer), wide - 1, high - 1);
    }
  }

  /** Say what the colours mean. */
  explain() {
    const largest = this.figures.reduce((high, { attribution }) => Math.max(high, Math.abs(attribution)), 0);
    const end = this.by === "attribution" ? `${largest.toFixed(3)} logits; a stroke: negative` : "1";
    replace(this.legend, "0 ", scale(), ` ${end} (square-root scale)`);
  }

  /** @param {KeyboardEvent} event */
  handleKey(event) {
    const move = MOVES[/** @type {keyof typeof MOVES} */ (event.key)];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    this.go(this.chosenHead ? [this.at[0] + (move[0] ?? 0), this.at[1] + (move[1] ?? 0)] : this.at);
  }

  /** @param {MouseEvent} event @returns {[number, number]} the head there */
  headAt(event) {
    const { wide, high } = this.cell;
    const frame = this.canvas.getBoundingClientRect();
    const size = (this.left + wide * this.heads) / frame.width; // the picture may be scaled down
    return [clamp(this.layers - 1 - Math.floor(((event.clientY - frame.top) * size) / high), this.layers),
      clamp(Math.floor(((event.clientX - frame.left) * size - this.left) / wide), this.heads)];
  }

  /** @param {number[]} place */
  go([layer = 0, head = 0]) {
    this.chosenHead = this.at = [clamp(layer, this.layers), clamp(head, this.heads)];
    this.choose(this.at);
  }
}

/** @param {HTMLElement} canvas @returns {Record<"line" | "faint" | "accent" | "ink" | "font", string>} read once: reading lays out the page */
function styleOf(canvas) {
  const style = getComputedStyle(canvas);
  const [line = "", faint = "", accent = ""] = ["--line", "--faint", "--accent"].map((name) => style.getPropertyValue(name));
  return { line, faint, accent, ink: style.color, font: style.fontFamily };
}

/** @param {number} value @param {number} count @returns {number} */
const clamp = (value, count) => Math.max(0, Math.min(value, count - 1));

/** @param {() => void} changed called when the colour scheme is another: a canvas has no style sheet @returns {void} */
export const onScheme = (changed) => SCHEME.addEventListener("change", changed);

/**
 * @param {HTMLCanvasElement} canvas @param {number} width @param {number} height in CSS pixels
 * @returns {CanvasRenderingContext2D | null} cleared, at the resolution of the screen
 */
export function fitCanvas(canvas, width, height) {
  const fine = devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * fine), Math.round(height * fine)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = `${width}px`;
    canvas.style.aspectRatio = `${width} / ${height}`;
  }
  const pen = canvas.getContext("2d");
  pen?.setTransform(fine, 0, 0, fine, 0, 0);
  pen?.clearRect(0, 0, width, height);
  return pen;
}

/**
 * @param {CanvasRenderingContext2D} pen @param {string} colour
 * @param {[number, number]} from @param {[number, number]} to
 */
export function stroke(pen, colour, from, to) {
  pen.strokeStyle = colour;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(...from);
  pen.lineTo(...to);
  pen.stroke();
}
