/**
 * The page of an exported file, which contains the runs that it shows.
 */

import "../parts/guide.js";
import { assemble, keepAddress } from "./assemble.js";
import { Session, sentence } from "../state/session.js";
import { Store } from "../state/store.js";
import { Trace } from "../state/trace.js";

const store = new Store();
const session = new Session(store);

/** Show the runs of the document, at the step that the address names. */
function begin() {
  store.restore(location.hash.slice(1));
  const { step, candidate } = store.state;
  assemble(store, session);
  try {
    document.querySelectorAll("script.trace").forEach((data, i) => open(/** @type {HTMLElement} */ (data), i + 1));
    if (!store.run) store.set({ run: 1 });
    if (!location.hash && store.run) store.showCanvas(store.run);
    store.goTo(step);
    store.set({ candidate });
  } catch (error) {
    store.set({ notice: sentence(error) });
  }
  keepAddress(store);
}

/** @param {HTMLElement} data the lines of a trace @param {number} id */
function open({ textContent, dataset: { name = document.title, parent, at } }, id) {
  store.add({ trace: Trace.parse(textContent ?? ""), request: null, parent: parent === undefined ? null : Number(parent),
    at: Number(at ?? 0), live: false, name, error: null }, id);
}

begin();
