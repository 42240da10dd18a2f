/**
 * Keeps a growing box scrolled to its end, unless its reader has scrolled away from there.
 */

const NEAR = 24; // pixels from the end that count as the end

export class Following {
  /** @param {HTMLElement} box that scrolls */
  constructor(box) {
    this.box = box;
    this.atEnd = true;
    box.addEventListener("scroll", () => {
      this.atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
    });
    new ResizeObserver(() => this.follow()).observe(box); // the box was shown or resized
  }

  /** Call after adding content. */
  follow() {
    if (this.atEnd) this.box.scrollTop = this.box.scrollHeight;
  }

  /** Scroll to the end, wherever the reader is. */
  toEnd() {
    this.atEnd = true;
    this.follow();
  }
}
