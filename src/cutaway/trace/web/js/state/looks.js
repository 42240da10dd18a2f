/**
 * The looks that the page has had: asked of the server one at a time, or held by the document; kept
 * as long as there is room, and the next step's asked for before somebody goes there.
 *
 * Knows what a look is asked with. Knows no document but the element that may hold some.
 */

import { ask } from "./api.js";
import { Look } from "./look.js";
/** @import { Store, Run } from "./store.js" */
/** @import { Trace } from "./trace.js" */

const ROOM = 64e6; // bytes
const NOT_CAUSAL = "The inside of a step is that of a causal model: a canvas has none.";

/**
 * What there is of a step: the look, or why there is none; neither while it is asked for.
 * `other`: it is against another rival than the one that is wanted.
 * @typedef {{look?: Look, error?: string, other?: boolean}} Found
 */

export class Looks {
  /** @param {Store} store @param {(error: unknown) => string} sentence what an error says */
  constructor(store, sentence) {
    this.store = store;
    this.sentence = sentence;
    /** @type {Map<string, Found>} the latest last */
    this.known = new Map();
    this.asking = "";
    this.stream = new AbortController();
    /** @type {Record<string, string> | null} by step; null: the document was not asked yet */
    this.held = null;
  }

  /** @returns {Found} of the step that is shown, against the selected candidate; {}: there is none yet */
  get selected() {
    const { run, state } = this.store;
    const step = run?.trace.steps[state.step];
    if (!run || !step) return {};
    const candidate = state.candidate ? step.candidates[state.candidate]?.id : undefined;
    return this.of(run, step.index, candidate === step.token_id ? null : candidate ?? null);
  }

  /**
   * @param {Run} run @param {number} step @param {number | null} rival null: the likeliest other
   * @returns {Found} what there is now; the store announces when there is more
   */
  of(run, step, rival) {
    const key = `${run.id} ${step} ${rival}`;
    const found = this.known.get(key);
    if (found) {
      this.known.delete(key);
      this.known.set(key, found);
      if (!found.error) this.ahead(run, step, rival);
      return found;
    }
    const { about } = this.store.state;
    if (!about) return this.fromDocument(run, step, rival);
    if (about.attention !== "causal" || run.trace.head.decoder) return { error: NOT_CAUSAL };
    this.start(key, run, step, rival);
    return {};
  }

  /** @param {Run} run @param {number} step @param {number | null} rival the next step, where nothing is asked */
  ahead(run, step, rival) {
    if (this.asking || rival !== null || !this.store.state.about) return;
    const key = `${run.id} ${step + 1} null`;
    if (!this.known.has(key) && run.trace.steps[step + 1]) this.start(key, run, step + 1, null);
  }

  /** @param {string} key @param {Run} run @param {number} step @param {number | null} rival */
  async start(key, run, step, rival) {
    if (this.asking === key) return;
    this.stream.abort(); // of what nobody looks at any more
    this.asking = key;
    const { signal } = (this.stream = new AbortController());
    /** @type {Found} */
    let found;
    try {
      const answer = await ask("/v1/inside", { ...stepOf(run.trace, step), rival, format: "safetensors" }, signal);
      found = { look: new Look(await answer.arrayBuffer()) };
    } catch (error) {
      if (signal.aborted) return;
      found = { error: this.sentence(error) };
    }
    if (this.asking === key) this.asking = "";
    this.keep(key, found);
    this.store.changed();
  }

  /** @param {string} key @param {Found} found */
  keep(key, found) {
    this.known.set(key, found);
    let bytes = 0;
    for (const [old, { look }] of [...this.known].reverse()) {
      bytes += look?.bytes ?? 0;
      if (bytes > ROOM) this.known.delete(old);
    }
  }

  /**
   * @param {Run} run @param {number} step @param {number | null} rival @returns {Found}
   */
  fromDocument(run, step, rival) {
    this.held ??= JSON.parse(document.querySelector("#looks")?.textContent ?? "{}");
    const packed = run.id === 1 ? this.held?.[step] : undefined;
    if (packed === undefined) return { error: missing(Object.keys(this.held ?? {}).map(Number)) };
    const plain = `${run.id} ${step} held`;
    const found = this.known.get(plain);
    if (!found) {
      this.known.set(plain, {});
      unpacked(packed).then((file) => {
        this.keep(plain, { look: new Look(file) });
        this.store.changed();
      });
      return {};
    }
    return { ...found, other: rival !== null && found.look !== undefined && found.look.rival !== rival };
  }
}

/** @param {number[]} steps that the document holds @returns {string} what is needed */
function missing(steps) {
  const more = "cutaway trace export FILE --html OUT --inside 0-20 -m MODEL writes a page that holds it, and "
    + "cutaway serve has a page that computes it: open the trace there.";
  if (!steps.length) return `The inside of a step needs the model, which this file does not hold. ${more}`;
  return `This file holds the inside of steps ${ranges(steps)}. For other steps, ${more}`;
}

/** @param {number[]} steps in order @returns {string} 0 to 20, 40 */
function ranges(steps) {
  /** @type {[number, number][]} */
  const found = [];
  for (const step of steps) {
    const last = found.at(-1);
    if (last && last[1] === step - 1) last[1] = step;
    else found.push([step, step]);
  }
  return found.map(([from, to]) => (from === to ? `${from}` : `${from} to ${to}`)).join(", ");
}

/** @param {Trace} trace @param {number} at @returns {Record<string, any>} a step, as the server is told of it */
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
async function unpacked(packed) {
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}
