/**
 * The figures of a whole run, step by step, computed once and extended as the run grows. Knows the record. Knows no
 * document and no pixel.
 */

import { LN2, bits } from "./numbers.js";
import { endMoment } from "./endings.js";
/** @import { Trace, Step, Pass } from "../state/trace.js" */
/** @import { EndMoment } from "./endings.js" */

/** The phases of a step of the engine, in order; draft only where tokens were drafted. */
export const PHASES = /** @type {const} */ (["schedule", "draft", "run", "sample"]);

/**
 * @param {Step | Pass} record @param {Step | Pass | undefined} before
 * @returns {boolean} whether one step of the engine computed both tokens: then they have one time, where there are times
 */
export const sharesPass = (record, before) =>
  before !== undefined && "source" in record && PHASES.some((phase) => record.ms[phase])
    && PHASES.every((phase) => record.ms[phase] === before.ms[phase]);

/**
 * An outcome of the end token: the number of steps that had it, and the sum of the token's probabilities there under the
 * model's own logits, which is the expected number of ends.
 * @typedef {{letter: string, count: number, expected: number}} Outcome
 */

export class Series {
  /** @param {Trace} trace */
  constructor(trace) {
    this.trace = trace;
    /** @type {number[]} −log2 of the token's probability */
    this.surprise = [];
    /** @type {number[]} bits, before the chain */
    this.entropy = [];
    /** @type {(EndMoment | null)[]} null: no end token is recorded */
    this.moments = [];
    /** @type {number[]} probability of all end tokens together; 0 where none is recorded */
    this.end = [];
    /** @type {number[]} bytes of the keys and values read */
    this.kv = [];
    /** @type {number[][]} milliseconds of the first phase, of the first two, and so on; 0 for a token of the same pass as the one before */
    this.ms = PHASES.map(() => []);
    /** @type {Map<string, Outcome>} by outcome of the end token */
    this.outcomes = new Map();
    /** The probability that no draw so far ends the text: under the model's own logits, and after the chain. */
    this.silence = { model: 1, final: 1 };
    this.grow();
  }

  /** @returns {number} */
  get length() {
    return this.surprise.length;
  }

  /** Add the new steps. */
  grow() {
    for (let i = this.length; i < this.trace.steps.length; i++) {
      this.take(/** @type {Step} */ (this.trace.steps[i]));
    }
  }

  /** @param {Step} step */
  take(step) {
    const moment = endMoment(this.trace, step);
    this.surprise.push(bits(step.logprob));
    this.entropy.push(step.entropy / LN2);
    this.kv.push((step.kv_tokens ?? 0) * this.trace.head.kv_bytes_per_token);
    this.moments.push(moment);
    this.end.push(moment?.probability ?? 0);
    const isShared = sharesPass(step, this.trace.steps[this.surprise.length - 2]);
    let sum = 0;
    PHASES.forEach((phase, i) => this.ms[i]?.push(sum += isShared ? 0 : step.ms[phase] ?? 0));
    if (moment) this.count(moment);
  }

  /** @param {EndMoment} moment */
  count({ outcome, letter, probability, final }) {
    const entry = this.outcomes.get(outcome) ?? { letter, count: 0, expected: 0 };
    entry.count += 1;
    entry.expected += probability;
    this.outcomes.set(outcome, entry);
    if (outcome === "drawn" || outcome === "forced") return; // not a draw that the end token lost
    this.silence.model *= 1 - Math.min(probability, 1);
    this.silence.final *= 1 - Math.min(final, 1);
  }
}

/** @type {WeakMap<Trace, Series>} */
const allSeries = new WeakMap();

/** @param {Trace} trace @returns {Series} up to its last step, the same object for each trace */
export function seriesOf(trace) {
  let series = allSeries.get(trace);
  if (!series) allSeries.set(trace, (series = new Series(trace)));
  series.grow();
  return series;
}
