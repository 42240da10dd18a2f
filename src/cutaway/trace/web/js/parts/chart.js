/**
 * A chart of rows on one axis of steps, with a cursor over all of them.
 *
 * Draws only the visible part, so that a run of any length costs the same. Knows the document and rows of paths, not
 * what they mean.
 */

import { columnsOf, middleOf, spanOf, stepAt } from "../figures/columns.js";
import { countFrom1 } from "../figures/numbers.js";
import { el, replace, svg, typeScale } from "./dom.js";
/** @import { Row } from "./rows.js" */
/** @import { Series } from "../figures/series.js" */
/** @import { Sight } from "../figures/columns.js" */

const GUTTER = 80; // pixels for the names of the rows, at the usual size of the type
const NEAR = 8; // pixels per step when zoomed in
const AIR = 14; // pixels between rows

export class Chart {
  /**
   * @param {(series: Series) => Row[]} rowsOf
   * @param {{choose: (step: number) => void, hover: (step: number | null) => void}} listener
   */
  constructor(rowsOf, listener) {
    this.rowsOf = rowsOf;
    this.listener = listener;
    this.near = false;
    this.dragging = false;
    this.names = svg("svg", { class: "names", "aria-hidden": "true" });
    this.marks = svg("g");
    this.picture = svg("svg", { "aria-hidden": "true" }, this.marks);
    // Layers of their own: moving them does not repaint the bars.
    this.cursor = el("div", { class: "cursor" });
    this.pointed = el("div", { class: "pointed", hidden: true });
    this.view = el("div", { class: "view" }, this.picture, this.pointed, this.cursor);
    this.room = el("div", {}, this.view);
    this.box = el("div", { class: "box", tabindex: 0, role: "slider", "aria-label": "Step",
      "aria-valuemin": 1 }, this.room);
    this.element = el("div", { class: "chart" }, this.names, this.box);
    /** @type {Series | null} */
    this.series = null;
    this.count = 0;
    this.width = 0;
    this.chosen = 0;
    this.layout = "";
    this.scale = 1; // of the type
    this.live = false;
    /** @type {unknown} */
    this.more = null;
    /** @type {Row[]} */
    this.rows = [];
    /** @type {number[]} y of the foot of each row */
    this.feet = [];
    /** @type {Map<string, SVGPathElement>[]} by row: its paths by colour */
    this.paths = [];
    /** @type {Sight} */
    this.sight = { first: 0, step: 1, width: 0, count: 0 };
    this.listen();
  }

  listen() {
    new ResizeObserver(([entry]) => this.handleResize(entry?.contentRect.width ?? 0)).observe(this.box);
    const stepUnder = (/** @type {PointerEvent} */ event) =>
      stepAt(this.sight, event.clientX - this.picture.getBoundingClientRect().left);
    this.box.addEventListener("scroll", () => this.near && this.drawRows());
    this.picture.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.dragging = event.pointerType === "mouse" || !this.near; // when zoomed in, a finger scrolls
      if (this.dragging) this.picture.setPointerCapture(event.pointerId);
      this.listener.choose(stepUnder(event));
    });
    this.picture.addEventListener("pointermove", (event) => {
      this.point(stepUnder(event));
      if (this.dragging) this.listener.choose(stepUnder(event));
    });
    for (const over of ["pointerup", "pointercancel"]) {
      this.picture.addEventListener(over, () => (this.dragging = false));
    }
    this.picture.addEventListener("pointerleave", () => this.point(null));
  }

  /** @param {number} width */
  handleResize(width) {
    if (width === this.width) return;
    this.width = width;
    this.view.style.width = `${width}px`;
    this.picture.setAttribute("width", String(width));
    this.drawAll();
  }

  /** @param {boolean} near whether each step has eight pixels; else the whole run fits the width */
  zoom(near) {
    this.near = near;
    this.box.classList.toggle("near", near);
    this.drawAll();
    this.follow();
  }

  /** @param {Series} series @param {number} step the selected one @param {boolean} live @param {unknown} [more] what else the rows depend on */
  show(series, step, live, more = null) {
    const scale = typeScale();
    const hasGrown = series !== this.series || series.length !== this.count || live !== this.live || scale !== this.scale || more !== this.more;
    this.scale = scale;
    this.more = more;
    this.series = series;
    this.count = series.length;
    this.live = live;
    if (hasGrown) this.drawAll();
    if (hasGrown || step !== this.chosen) this.choose(step);
  }

  drawAll() {
    if (!this.series || !this.width) return;
    this.rows = this.rowsOf(this.series);
    const layout = this.rows.map((row) => `${row.name} ${row.top}`).join() + this.scale;
    if (layout !== this.layout) this.layOut(this.rows);
    this.layout = layout;
    const wide = this.near ? Math.max(this.count * NEAR, this.width) : this.width;
    this.room.style.width = this.near ? `${wide}px` : "100%";
    this.drawRows();
  }

  /** Draw the visible part. */
  drawRows() {
    const step = this.near ? NEAR : this.width / spanOf(this.count, this.live);
    const first = this.near ? this.box.scrollLeft / NEAR : 0;
    this.sight = { first, step, width: this.width, count: this.count };
    const columns = columnsOf(this.sight);
    this.rows.forEach((row, i) => this.fill(i, row.paths(columns, this.feet[i] ?? 0)));
    this.place();
  }

  /** @param {number} row @param {Map<string, string>} paths by colour */
  fill(row, paths) {
    const elements = this.paths[row] ?? new Map();
    for (const [colour, path] of elements) if (!paths.has(colour)) path.setAttribute("d", "");
    for (const [colour, d] of paths) {
      let path = elements.get(colour);
      if (!path) {
        path = svg("path", { style: { fill: colour } });
        elements.set(colour, path);
        this.marks.append(path);
      }
      path.setAttribute("d", d);
    }
  }

  /** @param {Row[]} rows place each, with its name and scale beside it */
  layOut(rows) {
    this.feet = [];
    this.paths = rows.map(() => new Map());
    const names = [];
    const lines = [];
    let y = 4 * this.scale;
    this.names.setAttribute("width", String(GUTTER * this.scale));
    for (const row of rows) {
      const [top, foot] = [y, y + row.high];
      this.feet.push(foot);
      names.push(...nameOf(row, top, foot, this.scale));
      for (const share of [0, ...(row.lines ?? [])]) {
        const at = foot - share * row.high + 0.5;
        if (row.name) lines.push(svg("line", { x1: 0, x2: "100%", y1: at, y2: at, class: share ? "grid" : "foot" }));
      }
      y = foot + (row === rows.at(-1) ? 4 : this.airAfter(rows, row)) * this.scale;
    }
    replace(this.names, ...names);
    replace(this.marks, ...lines);
    for (const part of [this.names, this.picture]) part.setAttribute("height", String(y));
  }

  /** @param {Row[]} rows @param {Row} row @returns {number} pixels below a row: lanes are close to their curve */
  airAfter(rows, row) {
    const next = rows[rows.indexOf(row) + 1];
    return next?.name === "" ? (row.name ? 7 : 3) : AIR;
  }

  /** @param {number} step */
  choose(step) {
    this.chosen = step;
    this.box.setAttribute("aria-valuemax", String(Math.max(this.count, 1)));
    this.box.setAttribute("aria-valuenow", String(countFrom1(step)));
    this.follow();
    this.place();
  }

  /** Scroll to the selected step if it is not visible. */
  follow() {
    if (!this.near || !this.width) return;
    const x = middleOf(this.sight, this.chosen);
    if (x > 0 && x < this.width) return;
    this.box.scrollLeft = (this.chosen + 0.5) * NEAR - this.width / 2;
    this.drawRows();
  }

  /** Move the cursor to the selected step. */
  place() {
    const wide = Math.max(this.sight.step, 3);
    this.cursor.style.width = `${wide}px`;
    shift(this.cursor, middleOf(this.sight, this.chosen) - wide / 2);
  }

  /** @param {number | null} step under the pointer */
  point(step) {
    this.pointed.hidden = step === null;
    if (step !== null) shift(this.pointed, middleOf(this.sight, step));
    this.listener.hover(step);
  }
}

/** @param {HTMLElement} mark @param {number} x */
const shift = (mark, x) => (mark.style.transform = `translateX(${x.toFixed(1)}px)`);

/** @param {Row} row @param {number} top @param {number} foot @param {number} scale of the type @returns {SVGTextElement[]} */
function nameOf(row, top, foot, scale) {
  const right = { x: (GUTTER - 6) * scale, class: "scale" };
  if (!row.name) return [svg("text", { ...right, y: foot, class: "lane" }, row.top)];
  return [
    svg("text", { x: 0, y: (top + foot) / 2 + 4 * scale }, row.name),
    svg("text", { ...right, y: top + 7 * scale }, row.top),
    svg("text", { ...right, y: foot + 1 }, row.foot),
  ];
}
