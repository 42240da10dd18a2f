/**
 * The served page, which generates text and shows how.
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

/** Restore the state of the address, and start its runs. */
async function begin() {
  const saved = store.restore(location.hash.slice(1));
  assemble(store, session);
  try {
    store.set({ about: await aboutServer() });
  } catch (error) {
    const locked = error instanceof ApiError && error.status === 401;
    store.set({ notice: sentence(error), locked });
    return; // the address is kept, so that a reload tries again
  }
  const { about, kind } = store.state;
  if (kind === "chat" && about?.chat === false) {
    store.set({ kind: "completion", notice: "This model has no chat template and cannot chat: use Completion." });
  }
  keepAddress(store);
  if (saved.length) store.set({ follow: false }); // the address names the selection
  for (const run of saved) session.start(run.request, run);
}

begin();
