/**
 * What every part of the page has in common: a custom element that draws itself when the store
 * changes. Each part knows the store and its own piece of the document, and no other part.
 */

/** @import { Store } from "../state/store.js" */
/** @import { Session } from "../state/session.js" */

export class View extends HTMLElement {
  /** @param {Store} store @param {Session} session */
  attach(store, session) {
    this.store = store;
    this.session = session;
    store.addEventListener("change", () => this.draw());
    this.build();
    this.draw();
  }

  /** Make what stays, once. */
  build() {}

  /** Show what the store holds now; called once per frame at most. */
  draw() {}

  /** @returns {Store} */
  get here() {
    if (!this.store) throw new Error("a view is drawn before it is attached");
    return this.store;
  }

  /** @returns {Session} */
  get runs() {
    if (!this.session) throw new Error("a view is drawn before it is attached");
    return this.session;
  }
}
