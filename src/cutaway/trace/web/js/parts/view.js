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
  /** @type {Set<string>} what cannot be shown now */
  #unshown = new Set();
  /** @type {Set<string>} errors that were reported */
  #reported = new Set();
  #apology = Object.assign(document.createElement("p"), { className: "unshown", textContent: "This part of the run cannot be shown." });

  /** @param {Store} store @param {Session} session */
  attach(store, session) {
    this.#store = store;
    this.#session = session;
    store.addEventListener("change", () => this.attempt(() => this.draw()));
    this.build();
    this.attempt(() => this.draw());
  }

  /**
   * Show something of the part; that a record is not as cutaway writes it is said once, in the part's place.
   * @param {() => void} show @param {string} [section] of the part: each is tried for itself
   */
  attempt(show, section = "all") {
    try {
      show();
      this.#unshown.delete(section);
    } catch (error) {
      this.#unshown.add(section);
      if (!this.#reported.has(String(error))) console.error(error);
      this.#reported.add(String(error));
    }
    const isUnshown = this.#unshown.size > 0;
    if (this.#apology.isConnected === isUnshown) return;
    if (isUnshown) this.prepend(this.#apology);
    else this.#apology.remove();
    this.toggleAttribute("data-unshown", isUnshown);
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
 * @param {View} view @param {() => void} show @returns {() => void} what shows at once, or a tenth of a second after the last time
 */
export function throttle(view, show) {
  let [shownAt, timer] = [-Infinity, 0];
  const now = () => {
    timer = 0;
    shownAt = performance.now();
    view.attempt(show, "throttle");
  };
  return () => {
    const wait = shownAt + 100 - performance.now();
    if (wait <= 0) now();
    else timer ||= window.setTimeout(now, wait);
  };
}
