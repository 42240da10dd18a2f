/**
 * Starts, stops and forks runs, and opens them from files.
 *
 * Knows how the server's stream becomes a run in the store. Knows no document.
 */

import { labelOf } from "../figures/catalogue.js";
import { countFrom1, short } from "../figures/numbers.js";
import { seriesOf } from "../figures/series.js";
import { mostUncertain } from "../figures/step-view.js";
import { parseJson } from "./address.js";
import { ApiError, records } from "./api.js";
import { hear } from "./conversation.js";
import { InsideCache } from "./inside-cache.js";
import { sha256 } from "./sha256.js";
import { Trace, TraceError, readFile } from "./trace.js";
import { WhatIfStep } from "./what-if.js";
/** @import { Store, Run, Request } from "./store.js" */

export class Session {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.insides = new InsideCache(store, sentence, (run) => this.foreign(run));
    this.whatIf = new WhatIfStep(store, (...request) => this.stepWith(...request), sentence);
    /** @type {Map<number, AbortController>} by run */
    this.streams = new Map();
    /** @type {Map<string, number>} runs that were opened, by the SHA-256 of their files */
    this.opened = new Map();
  }

  /**
   * Request a text and add its steps to a run as they arrive.
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
      for await (const news of records(request, stream.signal, (delta) => hear(run, delta))) this.take(run, news);
    } catch (error) {
      if (!stream.signal.aborted) run.error = sentence(error);
      else if (run.request && run.trace.steps.length && !run.trace.head.decoder) {
        // So that the address brings it back with this length.
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
    this.store.announce();
    return run;
  }

  /** @param {Run} run @param {any[]} news records of its trace */
  take(run, news) {
    const begins = !run.trace.known;
    for (const record of news) run.trace.keep(record);
    // So that the address brings back the same text, also where the server chose the seed.
    if (run.request && run.request.seed === null) run.request.seed = run.trace.head.seed;
    const { state } = this.store;
    if (begins && state.follow) this.store.showCanvas(run);
    if (state.follow && state.run === run.id && !run.trace.head.decoder) {
      state.step = Math.max(0, run.trace.steps.length - 1);
      state.candidate = 0;
    }
    this.store.announce();
  }

  /** @param {Run} run which the page forgets; its forks stay, each as a text of its own */
  remove(run) {
    this.stop(run);
    for (const [hash, id] of this.opened) if (id === run.id) this.opened.delete(hash);
    this.insides.forget(run);
    this.store.drop(run.id);
  }

  /** @param {Run} run stop its stream; the text so far is kept */
  stop(run) {
    this.streams.get(run.id)?.abort();
  }

  /**
   * Fork a run: another token at a step, then the same luck.
   * @param {Run} run @param {number} at @param {number} token
   * @param {Record<string, any>} [settings] that differ from the run's
   * @returns {Promise<Run | undefined>} undefined: the served model cannot continue it, and a notice says so
   */
  async fork(run, at, token, settings = {}) {
    const name = `${run.trace.nameOf(token)} at ${countFrom1(at)}`;
    const passIndex = run.trace.steps[at]?.pass_index;
    if (passIndex !== undefined) return this.forkCanvas(run, at, token, passIndex);
    const forced = [...run.trace.outputIds.slice(0, at), token];
    return this.branch(run, at, this.makeContinuation(run, forced, settings), name);
  }

  /**
   * Start a run that leaves another at a step, which stays selected while the run grows.
   * @param {Run} run @param {number} at @param {Request} request @param {string} name
   * @returns {Promise<Run | undefined>} undefined: the served model cannot continue it, and a notice says so
   */
  async branch(run, at, request, name) {
    const parent = this.adopt(run);
    if (!parent) return undefined;
    const branchRun = this.start(request, { parent: parent.id, at, name }); // selects the new run
    this.store.set({ step: at, follow: false });
    return branchRun;
  }

  /**
   * Fork a canvas: another token in a cell in a pass, then the same luck.
   * @param {Run} run @param {number} cell @param {number} token @param {number} passIndex
   * @returns {Promise<Run>}
   */
  forkCanvas(run, cell, token, passIndex) {
    const { decoder, params } = run.trace.head;
    const rule = decoder?.rule ?? {};
    const before = (rule["forced_cells"] ?? []).filter((/** @type {number[]} */ [p, c]) => p !== passIndex || c !== cell);
    const denoise = { ...rule, forced_cells: [...before, [passIndex, cell, token]] };
    const request = this.makeContinuation(run, [], { max_tokens: params["max_tokens"], denoise });
    const name = `${run.trace.nameOf(token)} in cell ${countFrom1(cell)}, pass ${countFrom1(passIndex)}`;
    return this.start(request, { parent: run.id, at: cell, name });
  }

  /**
   * The request of a run, with a forced beginning of its text.
   * @param {Run} run @param {number[]} forced @param {Record<string, any>} [settings]
   * @returns {Request}
   */
  makeContinuation(run, forced, settings = {}) {
    const { head } = run.trace;
    const { about } = this.store.state;
    if (about && about.weights !== head.weights) {
      this.store.set({ notice: `The run was recorded with another model, ${head.model}; ${about.model} continues it.` });
    }
    const names = Object.keys(about?.defaults ?? {}).filter((name) => name in head.params && !RUN_SETTINGS.includes(name));
    const recorded = Object.fromEntries(names.map((name) => [name, head.params[name]]));
    if (recorded["candidates"] === 0) delete recorded["candidates"]; // in traces of earlier pages without a server
    // The draft model is the server's own, and a request does not name it.
    if (recorded["speculate"]) recorded["speculate"] = recorded["speculate"].split(":", 1)[0];
    if (about?.local?.lacks.includes("speculate")) delete recorded["speculate"]; // drafts change no token
    // A trace has the schema's text; of one that is no JSON the server says so.
    const schema = parseJson(recorded["json_schema"] ?? null);
    if (schema !== undefined) recorded["json_schema"] = schema;
    const maxTokens = Math.max(Number(head.params["max_tokens"] ?? 256), forced.length + AFTER);
    return {
      kind: "completion", prompt: head.prompt_token_ids, messages: [], forced, seed: head.seed,
      settings: { ...recorded, max_tokens: maxTokens, ...settings },
    };
  }

  /** @param {Run} run @returns {Request} that writes its text again */
  requestOf(run) {
    const { prompt, prompt_token_ids: ids, params, seed } = run.trace.head;
    if (run.request) return { ...run.request, seed };
    const again = this.makeContinuation(run, params["forced"] ?? [], { max_tokens: params["max_tokens"] });
    return { ...again, prompt: prompt ?? ids };
  }

  /**
   * Compute one step of a run with other settings and the same luck. No run is added to the page.
   * @param {Run} run @param {number} at @param {Record<string, any>} settings @param {AbortSignal} signal
   * @returns {Promise<Trace>} whose last step it is
   */
  async stepWith(run, at, settings, signal) {
    const reason = this.foreign(run);
    if (reason) throw new TraceError(reason);
    const before = run.trace.outputIds.slice(0, at);
    const trace = new Trace();
    const request = this.makeContinuation(run, before, { ...settings, max_tokens: at + 1 });
    for await (const news of records(request, signal)) for (const record of news) trace.take(record);
    return trace;
  }

  /** Continue the selected run from the selected step with the other settings and the same luck. */
  runWhatIf() {
    const { run, state } = this.store;
    if (!run || !state.whatIf) return;
    const request = this.makeContinuation(run, run.trace.outputIds.slice(0, state.step), state.whatIf);
    const settings = Object.entries(state.whatIf).map(([name, value]) => `${labelOf(name)} ${short(value)}`);
    this.branch(run, state.step, request, `${settings.join(", ")} from ${countFrom1(state.step)}`);
  }

  /** @param {Blob} file the package's recording @param {boolean} here whether the address has named a step */
  async openRecording(file, here) {
    const trace = Trace.parse(await readFile(file));
    const model = trace.head.model.split(/[-.]/, 1)[0] ?? "";
    this.store.open({ id: 0, trace, request: null, parent: null, at: 0, live: false, error: null,
      name: `recorded with ${model}, seed ${trace.head.seed}` }, here);
  }

  /**
   * Make the recording a run of the reader's own before a fork leaves it, so that an address can restore it.
   * @param {Run} run @returns {Run | null} the same run, unless it is the recording; null: a notice says why not
   */
  adopt(run) {
    const { state } = this.store;
    if (run !== state.recording) return run;
    const reason = this.foreign(run);
    if (reason) return this.store.set({ notice: reason }), null;
    const { step, candidate } = state;
    const ownRun = this.store.add({ ...run, request: this.requestOf(run) });
    this.store.set({ step, candidate });
    return ownRun;
  }

  /** @param {Run} run @returns {string | null} why the served model computes nothing of the recording; null: it does */
  foreign(run) {
    const { about, recording } = this.store.state;
    if (run !== recording || !about || about.weights === run.trace.head.weights) return null;
    return `This run was ${run.name}, and the served model is ${about.model}: write a text of your own.`;
  }

  /** @param {File[]} files one after the other, so that a fork finds its parent */
  async openAll(files) {
    this.store.set({ notice: null });
    for (const file of files) await this.open(file);
  }

  /**
   * @param {string} name of a file @param {string} lines its text
   * @returns {Promise<Trace>} a long one is read in slices, with its figures, while a notice says how far it is
   */
  async read(name, lines) {
    let notice = "";
    const trace = await Trace.read(lines, (share, growing) => {
      seriesOf(growing);
      notice = `reading ${name}: ${Math.floor(100 * share)}%`;
      this.store.set({ notice });
      return new Promise((done) => setTimeout(done));
    });
    if (this.store.state.notice === notice) this.store.set({ notice: null });
    return trace;
  }

  /**
   * A fork becomes a child of its parent if that was opened before.
   * @param {File} file @returns {Promise<Run | null>} null: it is not a trace, and a notice says why
   */
  async open(file) {
    /** @type {Omit<Run, "id">} */
    const run = { trace: new Trace(), request: null, parent: null, at: 0, live: false,
      name: file.name, error: null };
    try {
      run.trace = await this.read(file.name, await readFile(file));
    } catch (error) {
      this.store.set({ notice: `${file.name}: ${sentence(error)}` });
      return null;
    }
    const { parent } = run.trace.head;
    const parentId = parent && this.opened.get(parent.trace);
    const openedRun = this.store.add(parentId ? { ...run, parent: parentId, at: parent.step } : run);
    this.store.showCanvas(openedRun);
    if (!run.trace.steps.length && !run.trace.passes.length) this.store.set({ notice: `${file.name} has no step yet: it ends with its head` });
    const hash = await sha256(new Uint8Array(await file.arrayBuffer()));
    this.opened.set(hash, openedRun.id);
    return openedRun;
  }
}

/** Settings of a run that its continuation does not take over: a request has its own seed and forced tokens, the page
 * reads no log-probabilities but those of the trace, and without the KV cache a step would compute the whole text. */
const RUN_SETTINGS = ["seed", "forced", "logprobs", "prompt_logprobs", "kv_cache"];

/** The least number of tokens after a fork, however close it is to the end of its run. */
const AFTER = 32;

/** @param {unknown} error @returns {string} */
export function sentence(error) {
  if (error instanceof ApiError || error instanceof TraceError) return error.message;
  return error instanceof Error ? `${error.name}: ${error.message}` : String(error);
}
