/**
 * From what the fields say to a request, and back where the server does not take it.
 *
 * Knows the store and the session. Knows no document.
 */

/** @import { Request, Run, Store } from "./store.js" */
/** @import { Session } from "./session.js" */

/** max_tokens where neither the fields nor the server's defaults are known. */
const MOST = 256;

/**
 * @param {Store} store
 * @param {Partial<Request>} own what this request has that the fields do not say
 * @returns {Request} with the settings and the seed of the fields
 */
export function requested(store, own) {
  const { settings, seed, about } = store.state;
  // What the panel shows goes for a conversation, too: the server would let it fill the context.
  // Not for a canvas: the server's default is as many cells as the prompt leaves room for.
  const most = settings["max_tokens"] ?? (about?.canvas ? undefined : about?.defaults["max_tokens"] ?? MOST);
  // It writes nothing from left to right.
  const canvas = about?.canvas && !about.canvas.usual ? { denoise: true } : {};
  return {
    kind: "completion", prompt: "", messages: [], forced: [], seed: seed.trim() || null, ...own,
    settings: { ...canvas, ...settings, ...(most === undefined ? {} : { max_tokens: most }), ...own.settings },
  };
}

/**
 * Begin a run and stay until it has ended. One that is stopped before it has begun leaves nothing
 * behind; one that the server refuses its sentence, beside the field that it names.
 * @param {Store} store @param {Session} session @param {Request} request
 * @param {{name?: string, id?: number, parent?: number | null, at?: number}} [more]
 * @returns {Promise<Run | null>} null: it was refused, or stopped at once
 */
export async function begun(store, session, request, more = {}) {
  const { run: before, step, candidate } = store.state;
  store.set({ refused: null, notice: null });
  const run = await session.start(request, more);
  if (run.trace.known) return run;
  store.drop(run.id);
  if (store.state.run === run.id) store.set({ run: before, step, candidate, follow: false });
  if (run.error !== null) store.set({ refused: { param: run.param ?? null, message: run.error } });
  return null;
}
