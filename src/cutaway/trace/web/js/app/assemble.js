/**
 * The parts that show runs, which the served page and an exported file have in common.
 */

import "../parts/canvas.js";
import "../parts/copy-link.js";
import "../parts/facts.js";
import "../parts/inside.js";
import "../parts/without.js";
import "../parts/keys.js";
import "../parts/picker.js";
import "../parts/sheet.js";
import "../parts/river.js";
import "../parts/strip.js";
import "../parts/time.js";
import "./panels.js";
import "../parts/timelines.js";
import "../parts/tree.js";
import "../parts/waterfall.js";
import "../parts/why.js";
import { View } from "../parts/view.js";
import { firstPanel, onlyCompares } from "../state/panels.js";
/** @import { Session } from "../state/session.js" */
/** @import { Store } from "../state/store.js" */

const RARELY = 250; // milliseconds, since browsers limit how often an address may change

/**
 * Show in the document what is outside of its parts: messages, the size of the type. First, so that the parts are drawn in that size.
 * @param {Store} store
 */
export function keepDocument(store) {
  store.addEventListener("change", () => announce(store));
}

/** @param {Store} store @param {Session} session attach every part of the document */
export function assemble(store, session) {
  for (const part of document.querySelectorAll("*")) {
    if (part instanceof View && !part.isAttached) part.attach(store, session);
  }
  document.querySelector(".skip")?.addEventListener("click", () =>
    /** @type {HTMLElement | null} */ (document.querySelector("token-strip .tokens"))?.focus());
  acceptFiles(session);
}

/**
 * Keep the address equal to the state, without new entries in the history. Another address, typed or from the history,
 * reloads the page.
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
  addEventListener("hashchange", () => location.reload()); // replaceState fires no such event
}

/** @param {Store} store what the document shows outside of its parts */
function announce(store) {
  const { classList } = document.documentElement;
  const { about, large, runs } = store.state;
  classList.toggle("large", large);
  classList.toggle("begun", runs.length > 0);
  classList.toggle("compares", onlyCompares(about));
  classList.toggle("blank", about !== null && !store.run && firstPanel(about) !== "step");
  const notice = document.querySelector("#notice");
  const broken = store.run?.trace.steps.length && store.run.error; // a run without a token says so in the text's place
  const message = [store.state.notice, broken].filter(Boolean).join(" · ");
  if (notice && notice.textContent !== message) notice.textContent = message;
}

/** @param {Session} session open traces that are dropped anywhere on the page */
function acceptFiles(session) {
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    session.openAll([...(event.dataTransfer?.files ?? [])]);
  });
}
