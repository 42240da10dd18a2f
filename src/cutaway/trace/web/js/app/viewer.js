/**
 * The page of an exported file, which contains the runs that it shows.
 */

import "../parts/guide.js";
import { assemble, keepAddress, keepDocument } from "./assemble.js";
import { Session, sentence } from "../state/session.js";
import { Store } from "../state/store.js";

const store = new Store();
const session = new Session(store);

/** Show the runs of the document, at the step that the address names, or the guide; all parts at once, so that nothing moves. */
async function begin() {
  keepDocument(store);
  store.restore(location.hash.slice(1));
  try {
    for (const [i, data] of document.querySelectorAll("script.trace").entries()) await open(/** @type {HTMLElement} */ (data), i + 1);
    if (!store.run) store.set({ run: 1 });
    if (!location.hash && store.run) store.showCanvas(store.run);
    const { step, candidate } = store.state;
    store.goTo(step); // as far as the run has it
    store.set({ candidate });
  } catch (error) {
    store.set({ notice: sentence(error) });
  }
  assemble(store, session);
  keepAddress(store);
}

/** @param {HTMLElement} data the lines of a trace @param {number} id */
async function open({ textContent, dataset: { name = document.title, parent, at } }, id) {
  store.add({ trace: await session.read(name, textContent ?? ""), request: null, parent: parent === undefined ? null : Number(parent),
    at: Number(at ?? 0), live: false, name, error: null }, id);
}

begin();
