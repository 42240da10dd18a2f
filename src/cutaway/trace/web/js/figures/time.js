/**
 * Where the time went: the engine's step of a token by phase, and all of them so far. Knows the record. Knows no document.
 */

import { percent, thousands } from "./numbers.js";
import { PHASES, sharesPass } from "./series.js";
/** @import { Trace, Step, Pass } from "../state/trace.js" */

/**
 * One step of the engine, or one pass over a canvas: its milliseconds, those of the model, and how many tokens it read.
 * @typedef {{ms: number, model: number, tokens: number}} Block
 * @typedef {{name: string, ms: number}} Part
 * @typedef {{blocks: Block[], at: number[], ms: number, model: number}} Times at: by step or pass, the index of its block
 */

const NAMES = { schedule: "waiting", draft: "drafting", run: "model", sample: "choosing" };

/** @type {WeakMap<Trace, Times>} */
const all = new WeakMap();

/** @param {Trace} trace @returns {Times} of all steps so far; of a canvas, of all passes */
export function timesOf(trace) {
  const times = all.get(trace) ?? { blocks: [], at: [], ms: 0, model: 0 };
  all.set(trace, times);
  const records = trace.head.decoder ? trace.passes : trace.steps;
  for (let i = times.at.length; i < records.length; i++) take(times, /** @type {Step | Pass} */ (records[i]), records[i - 1]);
  return times;
}

/** @param {Times} times @param {Step | Pass} record @param {Step | Pass | undefined} before */
function take(times, record, before) {
  if (!sharesPass(record, before)) {
    const ms = PHASES.reduce((sum, phase) => sum + (record.ms[phase] ?? 0), 0);
    const model = (record.ms["run"] ?? 0) + (record.ms["draft"] ?? 0);
    times.blocks.push({ ms, model, tokens: ("rows" in record ? record.rows : record.kv_tokens) ?? 0 });
    times.ms += ms;
    times.model += model;
  }
  times.at.push(times.blocks.length - 1);
}

/** @param {Step | Pass} record @returns {Part[]} its phases, those that took any time */
export const partsOf = ({ ms }) => PHASES.map((phase) => ({ name: NAMES[phase], ms: ms[phase] ?? 0 })).filter(({ ms: took }) => took > 0);

/** @param {Times} times @param {boolean} isCanvas @returns {string} "" where the record has no times */
export function timeSentence({ ms, model, blocks }, isCanvas) {
  if (!ms) return "";
  const whole = ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`;
  const count = `${thousands(blocks.length)} ${isCanvas ? "pass" : "step"}${blocks.length === 1 ? "" : isCanvas ? "es" : "s"}`;
  return `${percent(model / ms)} of the time is the model (${whole}, ${count}).`;
}
