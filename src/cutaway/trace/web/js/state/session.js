/**
 * Runs: begun, stopped, forked, opened from a file, and brought back from an address.
 *
 * Knows how the server's stream becomes a run in the store. Knows no document.
 */

import { mostUncertain } from "../figures/uncertain.js";
import { ApiError, records } from "./api.js";
import { sha256 } from "./export.js";
import { InsideCache } from "./inside-cache.js";
import { Trace, TraceError, lineOf, readFile } from "./trace.js";
/** @import { Store, Run, Request } from "./store.js" */

export class Session {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.insides = new InsideCache(store, sentence);
    /** @type {Map<number, AbortController>} by run */
    this.streams = new Map();
    /** @type {Map<string, number>} runs that came from files, by the files' SHA-256 */
    this.opened = new Map();
  }

  /**
   * Ask for a text and take its steps as they come; the run ends by itself.
   * @param {Request} request
   * @param {{parent?: number | null, at?: number, name?: string, id?: number}} [more]
   * @returns {Promise<Run>} the run, once it has ended
   */
  async start(request, more = {}) {
    const run = this.store.add({
      trace: new Trace(), request: { ...request }, parent: more.parent ?? null, at: more.at ?? 0,
      live: true, name: more.name ?? "", error: null,
    }, more.id);
    const stream = new AbortController();
    this.streams.set(run.id, stream);
    try {
      for await (const news of records(request, stream.signal)) this.take(run, news);
    } catch (error) {
      if (!stream.signal.aborted) run.error = sentence(error);
      else if (run.request && run.trace.steps.length && !run.trace.head.decoder) {
        // Whoever stopped it does not want it longer when the address brings it back.
        run.request.settings = { ...run.request.settings, max_tokens: run.trace.steps.length };
      }
      run.param = error instanceof ApiError ? error.param : null;
    }
    this.streams.delete(run.id);
    run.live = false;
    const { state } = this.store;
    if (state.follow && state.run === run.id && run.trace.known && !run.trace.head.decoder) {
      this.store.set({ step: mostUncertain(run.trace), candidate: 0, follow: false });
    }
    this.store.changed();
    return run;
  }

  /** @param {Run} run @param {any[]} news records of its trace */
  take(run, news) {
    const begins = !run.trace.known;
    for (const record of news) {
      run.trace.take(record);
      run.trace.lines.push(lineOf(record));
    }
    // From now on the address brings back the same text, also where the server chose the seed.
    if (run.request && run.request.seed === null) run.request.seed = run.trace.head.seed;
    const { state } = this.store;
    if (begins && state.follow) this.store.showCanvas(run);
    if (state.follow && state.run === run.id && !run.trace.head.decoder) {
      state.step = Math.max(0, run.trace.steps.length - 1);
      state.candidate = 0;
    }
    this.store.changed();
  }

  /** @param {Run} run stop its stream; what was written stays */
  stop(run) {
    this.streams.get(run.id)?.abort();
  }

  /**
   * Another token at a step, and on with the same luck.
   * @param {Run} run @param {number} at @param {number} token
   * @param {Record<string, any>} [settings] other ones than the run's
   * @returns {Promise<Run>}
   */
  fork(run, at, token, settings = {}) {
    const name = `${run.trace.nameOf(token)} at ${at}`;
    const passed = run.trace.steps[at]?.pass_index;
    if (passed !== undefined) return this.forkCanvas(run, at, token, passed);
    const forced = [...run.trace.outputIds.slice(0, at), token];
    return this.branch(run, at, this.continued(run, forced, settings), name);
  }

  /**
   * A run that parts from another at a step; the view stays at that step while it is written.
   * @param {Run} run @param {number} at @param {Request} request @param {string} name
   * @returns {Promise<Run>}
   */
  branch(run, at, request, name) {
    const written = this.start(request, { parent: run.id, at, name }); // selects itself
    this.store.set({ step: at, follow: false });
    return written;
  }

  /**
   * Another token comes to stand in a cell of a canvas in a pass, and on with the same luck.
   * @param {Run} run @param {number} cell @param {number} token @param {number} passed
   * @returns {Promise<Run>}
   */
  forkCanvas(run, cell, token, passed) {
    const { decoder, params } = run.trace.head;
    const rule = decoder?.rule ?? {};
    const before = (rule["forced_cells"] ?? []).filter((/** @type {number[]} */ [p, c]) => p !== passed || c !== cell);
    const denoise = { ...rule, forced_cells: [...before, [passed, cell, token]] };
    const request = this.continued(run, [], { max_tokens: params["max_tokens"], denoise });
    const name = `${run.trace.nameOf(token)} in cell ${cell}, pass ${passed}`;
    return this.start(request, { parent: run.id, at: cell, name });
  }

  /**
   * The same request with a given beginning of its answer.
   * @param {Run} run @param {number[]} forced @param {Record<string, any>} [settings]
   * @returns {Request}
   */
  continued(run, forced, settings = {}) {
    const { head } = run.trace;
    const { about } = this.store.state;
    if (about && about.weights !== head.weights) {
      this.store.set({ notice: `The run was recorded with another model, ${head.model}: ${about.model} goes on.` });
    }
    const named = Object.keys(about?.defaults ?? {}).filter((name) => name in head.params);
    const asked = Object.fromEntries(named.map((name) => [name, head.params[name]]));
    const most = Math.max(Number(head.params["max_tokens"] ?? 256), forced.length + AFTER);
    return {
      kind: "completion", prompt: head.prompt_token_ids, messages: [], forced, seed: head.seed,
      settings: { ...asked, max_tokens: most, ...settings },
    };
  }

  /**
   * One step of a run with other settings and the same luck, as the model computes it; the run that
   * this takes is on no record.
   * @param {Run} run @param {number} at @param {Record<string, any>} settings @param {AbortSignal} signal
   * @returns {Promise<Trace>} with that step as its last
   */
  async stepWith(run, at, settings, signal) {
    const before = run.trace.outputIds.slice(0, at);
    const trace = new Trace();
    const request = this.continued(run, before, { ...settings, max_tokens: at + 1 });
    for await (const news of records(request, signal)) for (const record of news) trace.take(record);
    return trace;
  }

  /** @param {File[]} files one after the other, so that a fork finds its parent */
  async openAll(files) {
    this.store.set({ notice: null });
    for (const file of files) await this.open(file);
  }

  /**
   * A fork is put below its parent where that was opened before.
   * @param {File} file @returns {Promise<Run | null>} null where it is no trace; the page says why
   */
  async open(file) {
    /** @type {Omit<Run, "id">} */
    const run = { trace: new Trace(), request: null, parent: null, at: 0, live: false,
      name: file.name, error: null };
    try {
      run.trace = Trace.parse(await readFile(file));
    } catch (error) {
      this.store.set({ notice: `${file.name}: ${sentence(error)}` });
      return null;
    }
    const { parent } = run.trace.head;
    const known = parent && this.opened.get(parent.trace);
    const added = this.store.add(known ? { ...run, parent: known, at: parent.step } : run);
    this.store.showCanvas(added);
    const hash = await sha256(new Uint8Array(await file.arrayBuffer()));
    if (hash !== null) this.opened.set(hash, added.id);
    return added;
  }
}

/** Tokens that follow a branch at least, however near it is to the end of its run. */
const AFTER = 32;

/** @param {unknown} error @returns {string} */
export function sentence(error) {
  if (error instanceof ApiError || error instanceof TraceError) return error.message;
  return error instanceof Error ? `${error.name}: ${error.message}` : String(error);
}
