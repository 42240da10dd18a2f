/**
 * A box that follows the end of what is written into it, as long as its reader is there.
 */

const NEAR = 24; // pixels that still count as the end

export class Following {
  /** @param {HTMLElement} box that scrolls */
  constructor(box) {
    this.box = box;
    this.atEnd = true;
    box.addEventListener("scroll", () => {
      this.atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
    });
    new ResizeObserver(() => this.follow()).observe(box); // it was hidden, or is another size
  }

  /** Something was added. */
  follow() {
    if (this.atEnd) this.box.scrollTop = this.box.scrollHeight;
  }

  /** Go there, wherever the reader is. */
  toEnd() {
    this.atEnd = true;
    this.follow();
  }
}
