/**
 * The page of an exported file, which contains the run that it shows.
 */

import { assemble, keepAddress } from "./assemble.js";
import { Session, sentence } from "../state/session.js";
import { Store } from "../state/store.js";
import { Trace } from "../state/trace.js";

const store = new Store();
const session = new Session(store);

/** Show the run of the document, at the step that the address names. */
function begin() {
  store.restore(location.hash.slice(1));
  const { step, candidate } = store.state;
  assemble(store, session);
  try {
    const trace = Trace.parse(document.querySelector("#trace")?.textContent ?? "");
    const run = store.add({ trace, request: null, parent: null, at: 0, live: false,
      name: document.title, error: null });
    if (!location.hash) store.showCanvas(run);
    store.goTo(step);
    store.set({ candidate });
  } catch (error) {
    store.set({ notice: sentence(error) });
  }
  keepAddress(store);
}

begin();
