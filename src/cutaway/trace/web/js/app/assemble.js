/**
 * The parts that show runs, put together: what the served page and a file that opens from disk
 * have in common.
 */

import "../parts/canvas.js";
import "../parts/compare.js";
import "../parts/facts.js";
import "../parts/inside.js";
import "../parts/without.js";
import "../parts/keys.js";
import "../parts/picker.js";
import "../parts/strip.js";
import "./panels.js";
import "../parts/timelines.js";
import "../parts/tree.js";
import "../parts/waterfall.js";
import "../parts/why.js";
import { View } from "../parts/view.js";
/** @import { Session } from "../state/session.js" */
/** @import { Store } from "../state/store.js" */

const RARELY = 250; // milliseconds: browsers limit how often an address may change

/** @param {Store} store @param {Session} session let every part of the document draw itself */
export function assemble(store, session) {
  for (const part of document.querySelectorAll("*")) {
    if (part instanceof View && !part.attached) part.attach(store, session);
  }
  store.addEventListener("change", () => announce(store));
  acceptFiles(session);
}

/**
 * The address is that of what is shown; going through steps makes no history. Another address, put
 * in by hand or from the history, is another page.
 * @param {Store} store
 */
export function keepAddress(store) {
  let waiting = false;
  const write = () => {
    waiting = false;
    const address = `#${store.address}`;
    if (address !== location.hash) history.replaceState(null, "", address);
  };
  store.addEventListener("change", () => {
    if (waiting) return;
    waiting = true;
    setTimeout(write, RARELY);
  });
  addEventListener("hashchange", () => location.reload()); // what is written above is none
}

/** @param {Store} store */
function announce(store) {
  const notice = document.querySelector("#notice");
  const said = [store.state.notice, store.run?.error].filter(Boolean).join(" · ");
  if (notice && notice.textContent !== said) notice.textContent = said;
}

/** @param {Session} session a trace may be dropped anywhere on the page */
function acceptFiles(session) {
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    session.openAll([...(event.dataTransfer?.files ?? [])]);
  });
}
