/**
 * The served page, which generates text and shows how.
 */

import "../compose/compose.js";
import "../compose/device.js";
import "../lessons/lesson.js";
import "../compose/more.js";
import "../compose/settings.js";
import "../parts/first-look.js";
import "../parts/near.js";
import "../parts/what-if.js";
import { ApiError, fetchAbout, watchDevice, whenReady } from "../state/api.js";
import { assemble, keepAddress, keepDocument } from "./assemble.js";
import { isWelcome } from "../parts/arrival.js";
import { Session, sentence } from "../state/session.js";
import { Store } from "../state/store.js";

const store = new Store();
const session = new Session(store);

/** Restore the state of the address, and start its runs. */
async function begin() {
  const address = location.hash.slice(1);
  const saved = store.restore(address);
  store.set({ loading: true });
  document.querySelector("#unopened")?.remove();
  whenReady().catch((error) => store.set({ notice: sentence(error) }));
  keepDocument(store);
  assemble(store, session);
  watchDevice((device) => store.set({ device }));
  const about = fetchAbout();
  if (!saved.length) openRecording(new URLSearchParams(address).has("step"), about);
  try {
    store.welcome(await about);
  } catch (error) {
    const locked = error instanceof ApiError && error.status === 401;
    store.set({ notice: sentence(error), locked, loading: false });
    return; // the address is kept, so that a reload tries again
  }
  keepAddress(store);
  if (saved.length) store.set({ follow: false }); // the address names the selection
  for (const run of saved) session.start(run.request, run);
}

/** @param {boolean} here whether the address has named a step @param {Promise<any>} about before which nobody knows whether it fits the model */
async function openRecording(here, about) {
  const { href, integrity } = /** @type {HTMLLinkElement} */ (document.querySelector("#recording"));
  try {
    const file = await (await fetch(href, { integrity })).blob();
    await about.catch(() => {}); // its failure is told once
    await session.openRecording(file, here);
    if (!here && isWelcome()) store.arrive();
  } catch (error) {
    store.set({ notice: sentence(error) });
  }
}

begin();
