/**
 * A place for a drawing, which is drawn again where its width changes. Knows no figures.
 */

import { el, renderMark, replace, typeScale } from "./dom.js";

/** @typedef {(room: {width: number, type: number}) => import("../drawings/marks.js").Mark} Draw */

export class Drawing {
  width = 0;
  type = 1;
  /** @type {Draw | null} */
  make = null;

  /** @param {string} kind its class @param {() => void} [done] called after each drawing */
  constructor(kind, done = () => {}) {
    this.done = done;
    this.element = el("div", { class: `drawing ${kind}` });
    new ResizeObserver(([entry]) => this.handleResize(Math.floor(entry?.contentRect.width ?? 0))).observe(this.element);
  }

  /** @param {number} width */
  handleResize(width) {
    if (!width || (width === this.width && typeScale() === this.type)) return;
    [this.width, this.type] = [width, typeScale()];
    this.draw();
  }

  /** @param {Draw | null} make null: nothing to draw */
  show(make) {
    this.make = make;
    this.element.hidden = make === null;
    this.draw();
  }

  draw() {
    const { make, width, type } = this;
    if (!make || !width) return;
    replace(this.element, renderMark(make({ width, type })));
    this.done();
  }
}
