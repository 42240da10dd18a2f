/**
 * The selected step with other settings, the same tokens before it and the same luck: at once a sketch from the record,
 * and as soon as the settings rest, the model's exact step.
 *
 * Knows the store's settings and how a step is requested. Knows no document.
 */

import { canSketch, sketch } from "../figures/sketch.js";
/** @import { Store, Run } from "./store.js" */
/** @import { Trace, Step } from "./trace.js" */

const PAUSE = 150; // milliseconds without a change, before the model is asked

/**
 * step     null: the record has too little for a sketch, and the model has not answered yet
 * error    why the model does not answer
 * @typedef {{trace: Trace, step: Step | null, isExact: boolean, error: string | null}} Other
 */

export class WhatIfStep {
  /**
   * @param {Store} store
   * @param {(run: Run, at: number, settings: Record<string, any>, signal: AbortSignal) => Promise<Trace>} request
   * @param {(error: unknown) => string} sentence the message of an error
   */
  constructor(store, request, sentence) {
    this.store = store;
    this.request = request;
    this.sentence = sentence;
    this.key = "";
    /** @type {Other | null} */
    this.other = null;
    this.answer = new AbortController();
    this.timer = 0;
  }

  /** @returns {Other | null} null: the settings are the recorded ones */
  get now() {
    const { run, state } = this.store;
    const step = run?.trace.steps[state.step];
    if (!run || !step || !state.whatIf || run.live) return this.forget();
    const key = JSON.stringify([run.id, step.index, state.whatIf, state.about === null]);
    if (key !== this.key) this.begin(key, run, step, state.whatIf);
    return this.other;
  }

  /** @param {string} name of a setting @param {number} value the recorded one is no change */
  set(name, value) {
    const { run, state } = this.store;
    const { [name]: _, ...rest } = state.whatIf ?? {};
    const all = value === Number(run?.trace.head.params[name]) ? rest : { ...rest, [name]: value };
    this.store.set({ whatIf: Object.keys(all).length ? all : null });
  }

  /** @returns {null} */
  forget() {
    this.stop();
    this.key = "";
    return (this.other = null);
  }

  stop() {
    clearTimeout(this.timer);
    this.answer.abort();
  }

  /** @param {string} key @param {Run} run @param {Step} step @param {Record<string, any>} settings */
  begin(key, run, step, settings) {
    this.stop();
    this.key = key;
    const preview = canSketch(run.trace, step) ? sketch(run.trace, step, settings) : { trace: run.trace, step: null };
    this.other = { ...preview, isExact: false, error: null };
    if (this.store.state.about) this.timer = window.setTimeout(() => this.ask(run, step.index, settings), PAUSE);
  }

  /** @param {Run} run @param {number} at @param {Record<string, any>} settings */
  async ask(run, at, settings) {
    const { signal } = (this.answer = new AbortController());
    try {
      const trace = await this.request(run, at, settings, signal);
      const step = trace.steps[at];
      if (!signal.aborted && step) this.other = { trace, step, isExact: true, error: null };
    } catch (error) {
      if (!signal.aborted && this.other) this.other = { ...this.other, error: this.sentence(error) };
    }
    if (!signal.aborted) this.store.announce();
  }
}
