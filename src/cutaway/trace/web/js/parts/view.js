/**
 * The base of every part of the page: a custom element that draws itself when the store changes.
 * Each part knows the store and its own piece of the document, and no other part.
 */

/** @import { Store } from "../state/store.js" */
/** @import { Session } from "../state/session.js" */

export class View extends HTMLElement {
  /** @type {Store | undefined} */
  #store;
  /** @type {Session | undefined} */
  #session;

  /** @param {Store} store @param {Session} session */
  attach(store, session) {
    this.#store = store;
    this.#session = session;
    store.addEventListener("change", () => this.draw());
    this.build();
    this.draw();
  }

  /** Create the elements that stay, once. */
  build() {}

  /** Show the store's state; called at most once per frame. */
  draw() {}

  get isAttached() {
    return this.#store !== undefined;
  }

  get store() {
    if (!this.#store) throw new Error("a view is drawn before it is attached");
    return this.#store;
  }

  get session() {
    if (!this.#session) throw new Error("a view is drawn before it is attached");
    return this.#session;
  }
}

/**
 * Figures that change more often than ten times a second cannot be read, and would cost frames.
 * @param {() => void} show @returns {() => void} what shows at once, or a tenth of a second after the last time
 */
export function paced(show) {
  let [shownAt, timer] = [-Infinity, 0];
  const now = () => {
    timer = 0;
    shownAt = performance.now();
    show();
  };
  return () => {
    const wait = shownAt + 100 - performance.now();
    if (wait <= 0) now();
    else timer ||= window.setTimeout(now, wait);
  };
}
