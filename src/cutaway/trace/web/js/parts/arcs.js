/**
 * Arcs over a text, between the elements of its tokens. They lie in the box that scrolls the text, so that they scroll with
 * it, and are placed again where the text wraps otherwise. Knows elements, and no figures.
 */

import { arcs } from "../drawings/arcs.js";
import { renderMark, replace, svg } from "./dom.js";
/** @import { End } from "../drawings/arcs.js" */

/** @typedef {{element: Element, share: number}} Towards */

export class Arcs {
  layer = svg("svg", { class: "arcs-layer", "aria-hidden": "true" });
  observer = new ResizeObserver(() => this.place());
  /** @type {{box: HTMLElement, from: Element, to: Towards[], across: number} | null} */
  current = null;
  placedKey = "";
  watched = 0; // pieces of the text
  waiting = false;

  /**
   * @param {HTMLElement | null} box that scrolls the text; null: no arcs @param {Element} [from] @param {Towards[]} [to]
   * @param {number} [across] where in `from` they begin: 0 is its left edge
   */
  show(box, from, to = [], across = 0) {
    const before = this.current;
    this.current = box && from ? { box, from, to, across } : null;
    if (!this.current) {
      this.observer.disconnect();
      this.layer.remove();
      this.placedKey = "";
      return;
    }
    if (box !== before?.box || box?.childElementCount !== this.watched) this.watch();
    this.placeSoon();
  }

  /** Notice when the box or a piece of the text has another size. */
  watch() {
    const box = /** @type {HTMLElement} */ (this.current?.box);
    if (this.layer.parentElement !== box) box.append(this.layer);
    this.observer.disconnect();
    for (const element of [box, ...box.children]) if (element !== this.layer) this.observer.observe(element);
    this.watched = box.childElementCount;
  }

  /** Place the arcs once all parts have been drawn, so that the text is laid out once. */
  placeSoon() {
    if (this.waiting) return;
    this.waiting = true;
    queueMicrotask(() => {
      this.waiting = false;
      this.place();
    });
  }

  /** Draw the arcs where the tokens are now, unless they are there. */
  place() {
    if (!this.current) return;
    const { box, from, to, across } = this.current;
    const frame = box.getBoundingClientRect();
    const origin = { x: frame.left + box.clientLeft - box.scrollLeft, y: frame.top + box.clientTop - box.scrollTop };
    if (!from.getClientRects().length) return; // the text is not shown
    const start = end(from, origin, across);
    const targets = to.filter(({ element }) => element.getClientRects().length).map(({ element, share }) => ({ ...end(element, origin, 0.5), share }));
    const key = JSON.stringify([start, targets]);
    if (key === this.placedKey && this.layer.parentElement === box) return;
    if (this.layer.parentElement !== box) box.append(this.layer);
    this.placedKey = key;
    replace(this.layer, renderMark(arcs(start, targets)));
  }
}

/**
 * @param {Element} element @param {{x: number, y: number}} origin @param {number} across where: 0 is its left edge
 * @returns {End} of its widest piece: the spaces before a token may end the line above
 */
function end(element, { x, y }, across) {
  const [{ left, width, top, bottom }] = /** @type {[DOMRect]} */ ([...element.getClientRects()].sort((a, b) => b.width - a.width));
  return { x: left + width * across - x, top: top - y, bottom: bottom - y };
}
