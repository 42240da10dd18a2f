/**
 * The page that a server has at its root: it writes, and shows what it writes.
 */

import "../compose/compose.js";
import "../lessons/lesson.js";
import "../compose/settings.js";
import "../parts/what-if.js";
import { ApiError, aboutServer } from "../state/api.js";
import { assemble, keepAddress } from "./assemble.js";
import { Session, sentence } from "../state/session.js";
import { Store } from "../state/store.js";

const store = new Store();
const session = new Session(store);

/** Bring back what the address says, and begin. */
async function begin() {
  const saved = store.restore(location.hash.slice(1));
  assemble(store, session);
  try {
    store.set({ about: await aboutServer() });
  } catch (error) {
    const locked = error instanceof ApiError && error.status === 401;
    store.set({ notice: sentence(error), locked });
    return; // and the address stays, so that a reload brings back what it holds
  }
  const { about, kind } = store.state;
  if (kind === "chat" && about?.chat === false) {
    store.set({ kind: "completion", notice: "This model has no chat template and cannot chat: write a completion." });
  }
  keepAddress(store);
  if (saved.length) store.set({ follow: false }); // the selection is that of the address
  for (const run of saved) session.start(run.request, run);
}

begin();
