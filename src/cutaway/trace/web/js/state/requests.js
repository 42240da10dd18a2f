/**
 * Makes a request of the fields, and shows a refusal beside its field.
 *
 * Knows the store and the session. Knows no document.
 */

/** @import { Request, Run, Store } from "./store.js" */
/** @import { Session } from "./session.js" */

/** max_tokens where neither the fields nor the server's defaults have one. */
const MAX_TOKENS = 256;

/**
 * @param {Store} store
 * @param {Partial<Request>} overrides fields of this request that override those of the page
 * @returns {Request} with the settings and the seed of the page
 */
export function makeRequest(store, overrides) {
  const { settings, seed, about } = store.state;
  // The shown default also limits a conversation, for which the server has none. A canvas keeps the server's default:
  // as many cells as fit.
  const maxTokens = settings["max_tokens"] ?? (about?.canvas ? undefined : about?.defaults["max_tokens"] ?? MAX_TOKENS);
  // The model generates nothing from left to right.
  const canvas = about?.canvas && !about.canvas.usual ? { denoise: true } : {};
  return {
    kind: "completion", prompt: "", messages: [], forced: [], seed: seed.trim() || null, ...overrides,
    settings: { ...canvas, ...settings, ...(maxTokens === undefined ? {} : { max_tokens: maxTokens }), ...overrides.settings },
  };
}

/**
 * Start a run and wait for its end. A run that is stopped before its first record is removed; so is a refused one,
 * and the server's message is shown beside the field that it names.
 * @param {Store} store @param {Session} session @param {Request} request
 * @param {{name?: string, id?: number, parent?: number | null, at?: number}} [more]
 * @returns {Promise<Run | null>} null: it was refused, or stopped at once
 */
export async function startRun(store, session, request, more = {}) {
  const { run: before, step, candidate } = store.state;
  store.set({ refusal: null, notice: null });
  const run = await session.start(request, more);
  if (run.trace.known) return run;
  const isSelected = store.state.run === run.id;
  store.drop(run.id);
  if (isSelected) store.set({ run: before, step, candidate, follow: false });
  if (run.error !== null) store.set({ refusal: { param: run.param ?? null, message: run.error } });
  return null;
}
