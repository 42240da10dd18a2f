/**
 * A cache of the insides of steps, which the server computes, one at a time, or an exported file contains. The
 * next step's is requested in advance.
 *
 * Knows the fields of /v1/inside. Knows no document but the element that contains them.
 */

import { ask } from "./api.js";
import { countFrom1 } from "../figures/numbers.js";
import { continuesTexts } from "./panels.js";
import { StepInside } from "./step-inside.js";
/** @import { Store, Run } from "./store.js" */
/** @import { Trace } from "./trace.js" */

const ROOM = 64e6; // bytes
const NOT_CAUSAL = "Only a causal model has an inside of a step; a canvas has none.";

/**
 * The inside of a step, or why there is none; neither of them while it is requested.
 * `other`: the token is compared with another rival than the one that was asked for.
 * @typedef {{inside?: StepInside, error?: string, other?: boolean}} Found
 */

export class InsideCache {
  /**
   * @param {Store} store @param {(error: unknown) => string} sentence the message of an error
   * @param {(run: Run) => string | null} foreign why the served model cannot compute a run's steps
   */
  constructor(store, sentence, foreign) {
    this.store = store;
    this.foreign = foreign;
    this.sentence = sentence;
    /** @type {Map<string, Found>} the most recently used last */
    this.entries = new Map();
    this.asking = "";
    this.stream = new AbortController();
    /** @type {Record<string, string> | null} by run and step; null: the document was not read yet */
    this.embedded = null;
  }

  /** @returns {Found} of the selected step, compared with the selected candidate */
  get selectedInside() {
    const { run, state } = this.store;
    return run?.trace.steps[state.step] ? this.lookUp(run, state.step, this.store.rival) : {};
  }

  /**
   * @param {Run} run @param {number} step @param {number | null} rival null: the likeliest other token
   * @returns {Found} what is known now; the store changes once there is more
   */
  lookUp(run, step, rival) {
    const key = `${run.id} ${step} ${rival}`;
    const entry = this.entries.get(key);
    if (entry) {
      this.entries.delete(key);
      this.entries.set(key, entry);
      if (!entry.error) this.ahead(run, step, rival);
      return entry;
    }
    const { about } = this.store.state;
    if (!about) return this.fromDocument(run, step, rival);
    if (!continuesTexts(about) || run.trace.head.decoder) return { error: NOT_CAUSAL };
    const foreign = this.foreign(run);
    if (foreign) return { error: foreign };
    this.start(key, run, step, rival);
    return {};
  }

  /** @returns {StepInside | null} of the selected step, where it is known already; nothing is requested */
  get ready() {
    const { run, state } = this.store;
    const keys = run ? [this.store.rival, "embedded"].map((rival) => `${run.id} ${state.step} ${rival}`) : [];
    return keys.map((key) => this.entries.get(key)?.inside).find((inside) => inside) ?? null;
  }

  /** @param {Run} run @param {number} step @param {number | null} rival request the next step, unless a request is running */
  ahead(run, step, rival) {
    if (this.asking || rival !== null || !this.store.state.about) return;
    const key = `${run.id} ${step + 1} null`;
    if (!this.entries.has(key) && run.trace.steps[step + 1]) this.start(key, run, step + 1, null);
  }

  /** @param {string} key @param {Run} run @param {number} step @param {number | null} rival */
  async start(key, run, step, rival) {
    if (this.asking === key) return;
    this.stream.abort(); // another step was selected meanwhile
    this.asking = key;
    const { signal } = (this.stream = new AbortController());
    /** @type {Found} */
    let entry;
    try {
      const answer = await ask("/v1/inside", { ...stepOf(run.trace, step), rival, format: "safetensors" }, signal);
      entry = { inside: new StepInside(await answer.arrayBuffer()) };
    } catch (error) {
      if (signal.aborted) return;
      entry = { error: this.sentence(error) };
    }
    if (this.asking === key) this.asking = "";
    this.keep(key, entry);
    this.store.announce();
  }

  /** @param {Run} run that is removed */
  forget(run) {
    for (const key of this.entries.keys()) if (key.startsWith(`${run.id} `)) this.entries.delete(key);
    if (!this.asking.startsWith(`${run.id} `)) return;
    this.stream?.abort();
    this.asking = "";
  }

  /** @param {string} key @param {Found} entry */
  keep(key, entry) {
    this.entries.set(key, entry);
    let bytes = 0;
    for (const [old, { inside }] of [...this.entries].reverse()) {
      bytes += inside?.bytes ?? 0;
      if (bytes > ROOM) this.entries.delete(old);
    }
  }

  /** @param {Run} run @param {number} step @param {number | null} rival @returns {Found} */
  fromDocument(run, step, rival) {
    this.embedded ??= JSON.parse(document.querySelector("#looks")?.textContent ?? "{}");
    const packed = this.embedded?.[`${run.id} ${step}`];
    if (packed === undefined) return { error: missing(stepsOf(run, Object.keys(this.embedded ?? {}))) };
    const plain = `${run.id} ${step} embedded`;
    const entry = this.entries.get(plain);
    if (!entry) {
      this.entries.set(plain, {});
      unpack(packed).then((file) => {
        this.keep(plain, { inside: new StepInside(file) });
        this.store.announce();
      });
      return {};
    }
    return { ...entry, other: rival !== null && entry.inside !== undefined && entry.inside.rival !== rival };
  }
}

/** @param {Run} run @param {string[]} places runs and steps @returns {number[]} its steps */
const stepsOf = (run, places) =>
  places.map((place) => place.split(" ").map(Number)).flatMap(([id, step = 0]) => (id === run.id ? [step] : []));

/** @param {number[]} steps that the document contains @returns {string} how to get others */
function missing(steps) {
  const more = "open the trace on the page of cutaway serve, which computes it, or export it into a file: "
    + "cutaway trace export FILE --html OUT --inside 1-20 -m MODEL.";
  if (!steps.length) return `The inside of a step needs the model, which this file does not contain: ${more}`;
  return `This file contains the inside of ${steps.length === 1 ? "step" : "steps"} ${ranges(steps)}. For other steps, ${more}`;
}

/** @param {number[]} steps in order @returns {string} 1 to 21, 41 */
function ranges(steps) {
  /** @type {[number, number][]} */
  const spans = [];
  for (const step of steps) {
    const last = spans.at(-1);
    if (last && last[1] === step - 1) last[1] = step;
    else spans.push([step, step]);
  }
  return spans.map(([from, to]) => (from === to ? `${countFrom1(from)}` : `${countFrom1(from)} to ${countFrom1(to)}`)).join(", ");
}

/** @param {Trace} trace @param {number} at @returns {Record<string, any>} a step, as /v1/inside takes it */
export function stepOf(trace, at) {
  const { head } = trace;
  const step = trace.steps[at];
  return {
    prompt: head.prompt_token_ids, generated: trace.outputIds.slice(0, at + 1), step: at,
    row: step?.logits_hash, drawn: step?.sampled_id, settings: { ...head.params, seed: head.seed },
    interventions: head.interventions ?? null,
  };
}

/** @param {string} packed gzip, in base64 @returns {Promise<ArrayBuffer>} */
async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}
