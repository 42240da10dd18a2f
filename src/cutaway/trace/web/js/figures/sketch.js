/**
 * A step with other settings and the same luck, as far as the record tells: its candidates exactly, all other tokens
 * as the histogram of the logits has them. For drawings that cannot wait for the model. Knows no document.
 */

import { filters, isAdjusting, presets, stageNamed } from "./catalogue.js";
import { luckOf } from "./luck.js";
/** @import { Trace, Step, Candidate, StageRecord } from "../state/trace.js" */
/** @import { Param } from "./catalogue.js" */
/** @import { Stage } from "./numbers.js" */

/**
 * Tokens of one logit: a candidate, or those of a bin of the histogram. isTop: one of the likeliest, above all without a record
 * @typedef {{z: number, count: number, candidate: Candidate | null, isTop: boolean}} Entry
 *
 * A stage in the order of a run's settings. param: its one number, where it has a law; value: of the run
 * @typedef {{name: string, param: Param | null, value: number | null}} Place
 */

/** @param {Trace} trace @param {Record<string, any>} [settings] that differ @returns {Place[]} empty: the record does not name the order */
export function placesOf(trace, settings = {}) {
  const { params } = trace.head;
  const order = params["chain"] ?? presets[params["preset"]] ?? [];
  return order.map((/** @type {string} */ name) => {
    const entry = stageNamed.get(name);
    const param = entry?.law ? entry.params[0] ?? null : null;
    return { name, param, value: param && Number(settings[param.name] ?? params[param.name] ?? param.off) };
  });
}

/** @param {Trace} trace @param {Record<string, any>} settings @returns {Stage[]} the chain that they make of the run's */
export function chainWith(trace, settings) {
  const places = placesOf(trace, settings);
  const isGreedy = places.some(({ param, value }) => param?.name === "temperature" && value === 0);
  return places.flatMap(({ name, param, value }) => {
    const recorded = trace.head.chain.find(({ stage }) => stage === name);
    const entry = stageNamed.get(name);
    if (isGreedy && !entry?.at_zero) return [];
    if (!param) return recorded ?? [];
    const field = Object.keys(entry?.rule ?? {})[0] ?? "";
    return value === param.off ? [] : [{ stage: name, [field]: value ?? 0 }];
  });
}

/** @param {Trace} trace @param {Step} step @returns {boolean} whether the record tells enough */
export function canSketch(trace, step) {
  const { chain } = trace.head;
  const divided = chain.findIndex(({ stage }) => stage === "temperature");
  const mixed = divided >= 0 && divided < chain.findLastIndex(({ stage }) => isAdjusting(stage));
  return !mixed && step.pass_index === undefined && step.candidates.length > 0 && placesOf(trace).length > 0;
}

/**
 * @param {Trace} trace @param {Step} step @param {Record<string, any>} settings that differ from the run's
 * @returns {{trace: Trace, step: Step}} the step, and a trace of which only the head differs
 */
export function sketch(trace, step, settings) {
  const { head } = trace;
  const chain = chainWith(trace, settings);
  const params = { ...head.params, ...settings };
  const other = Object.create(trace, { known: { value: { ...head, chain, params } } });
  const isGreedy = params["temperature"] === 0;
  const { records, left, removedBy } = passStages(trace, step, chain);
  const whole = logSum(left);
  const finals = new Map(left.flatMap(({ candidate, z }) => (candidate ? [[candidate.id, z - whole]] : [])));
  const candidates = step.candidates.map((c) => ({
    ...c, removed_by: removedBy.get(c.id) ?? null, final_logprob: finals.get(c.id) ?? null,
    luck: isGreedy ? null : c.luck ?? luckOf(head.seed, step.position, c.id),
  }));
  const score = (/** @type {Candidate} */ c) => (c.final_logprob ?? -Infinity) + (c.luck ?? 0);
  const winner = candidates.reduce((a, b) => (score(b) > score(a) ? b : a));
  return { trace: other, step: {
    ...step, stages: records, candidates, token_id: winner.id, sampled_id: winner.id, source: isGreedy ? "greedy" : "sampled",
    rank: winner.rank, logprob: winner.logit - step.log_sum_exp, final_logprob: winner.final_logprob, final_log_sum_exp: whole,
  } };
}

/**
 * @param {Trace} trace @param {Step} step @param {Stage[]} chain
 * @returns {{records: StageRecord[], left: Entry[], removedBy: Map<number, number>}}
 */
function passStages(trace, step, chain) {
  const recorded = trace.head.chain;
  /** @type {Map<number, number>} */
  const removedBy = new Map();
  let left = entriesOf(trace, step);
  let isAsRecorded = true;
  const records = chain.map((stage, i) => {
    const at = recorded.findIndex((other) => other.stage === stage.stage);
    isAsRecorded &&= at === i && JSON.stringify(stage) === JSON.stringify(recorded[at]);
    const [before, whole] = [left, logSum(left)];
    left = isAsRecorded ? asRecorded(left, trace, step, at) : applyLaw(left, stage, step, at);
    const survivorIds = new Set(left.map(({ candidate }) => candidate?.id));
    const losses = before.flatMap(({ candidate }) => (candidate && !survivorIds.has(candidate.id) ? [candidate] : []));
    for (const { id } of losses) removedBy.set(id, i);
    return recordOf(before, whole, left, losses.map(({ id }) => id), isAsRecorded ? step.stages[at] : undefined);
  });
  return { records, left, removedBy };
}

/** @param {Entry[]} entries @returns {number} the logarithm of the sum of all tokens' exponentials */
function logSum(entries) {
  const maximum = Math.max(...entries.map(({ z }) => z));
  return maximum + Math.log(entries.reduce((sum, { z, count }) => sum + count * Math.exp(z - maximum), 0));
}

/** @param {Entry[]} entries @returns {number} */
const countOf = (entries) => entries.reduce((sum, { count }) => sum + count, 0);

/**
 * @param {Entry[]} before @param {number} whole their logSum @param {Entry[]} left @param {number[]} losses the ids that are gone
 * @param {StageRecord | undefined} recorded the same stage's
 * @returns {StageRecord}
 */
function recordOf(before, whole, left, losses, recorded) {
  if (recorded) return recorded;
  const survivors = Math.round(countOf(left));
  const hasRemoved = survivors < Math.round(countOf(before)); // then it is a filter, which changes no logit
  const log_sum_exp = logSum(left);
  return { survivors, removed_mass: hasRemoved ? Math.max(1 - Math.exp(log_sum_exp - whole), 0) : 0, log_sum_exp,
    min_kept_logit: null, top_removed: losses.slice(0, 8) };
}

/** @param {Trace} trace @param {Step} step @returns {Entry[]} of the model's own logits */
function entriesOf({ head }, step) {
  const tops = step.candidates.findIndex(({ rank }, i) => rank !== i + 1);
  const entries = step.candidates.map((candidate, i) => ({ z: candidate.logit, count: 1, candidate, isTop: tops < 0 || i < tops }));
  const counts = [...step.logit_histogram];
  for (const { z } of entries) {
    const bin = Math.min(Math.floor(step.maximum - z), counts.length - 1);
    counts[bin] = Math.max((counts[bin] ?? 0) - 1, 0);
  }
  const rest = counts.flatMap((count, bin) => (count ? [{ z: step.maximum - bin - 0.5, count, candidate: null, isTop: false }] : []));
  return [...entries, ...fitRest(entries, rest, head.vocab_size, step.log_sum_exp)];
}

/**
 * @param {Entry[]} entries of the candidates @param {Entry[]} rest @param {number} count of all tokens @param {number} whole the logarithm of their sum
 * @returns {Entry[]} the rest with the recorded number and probability
 */
function fitRest(entries, rest, count, whole) {
  const tokens = count - entries.length;
  const share = 1 - entries.reduce((sum, { z }) => sum + Math.exp(z - whole), 0);
  if (tokens <= 0 || share < 1e-12 || !rest.length) return [];
  const factor = tokens / countOf(rest);
  const shift = Math.log(share) + whole - logSum(rest) - Math.log(factor);
  return rest.map((entry) => ({ ...entry, z: entry.z + shift, count: entry.count * factor }));
}

/**
 * @param {Entry[]} left @param {Trace} trace @param {Step} step @param {number} at
 * @returns {Entry[]} what the record says that the stage left
 */
function asRecorded(left, { head }, step, at) {
  const stage = head.chain[at];
  const record = step.stages[at];
  if (!stage || !record) return left;
  const divisor = stage.stage === "temperature" ? stage["temperature"] : 1;
  const adjusts = at === head.chain.findLastIndex((item) => isAdjusting(item.stage));
  const entries = left.flatMap((entry) => (!entry.candidate || entry.candidate.removed_by === at ? []
    : [{ ...entry, z: (entry.z + (adjusts ? entry.candidate.delta : 0)) / divisor }]));
  const bins = left.filter(({ candidate }) => !candidate);
  if (isAdjusting(stage.stage) && !adjusts) return [...entries, ...bins]; // the record has no logits there
  const rest = bins.map((entry) => ({ ...entry, z: entry.z / divisor }));
  const survivors = filters(stage.stage) ? highest(rest, record.survivors - entries.length) : rest;
  return [...entries, ...fitRest(entries, survivors, record.survivors, record.log_sum_exp)];
}

/** @param {Entry} a @param {Entry} b @returns {number} */
const compareHeight = (a, b) => Number(b.isTop) - Number(a.isTop) || b.z - a.z;

/** @param {Entry[]} entries @param {number} count @returns {Entry[]} as many of the highest, the highest first */
function highest(entries, count) {
  let room = Math.max(count, 0);
  return entries.toSorted(compareHeight).flatMap((entry) => {
    const amount = Math.min(entry.count, room);
    room -= amount;
    return amount > 0 ? [{ ...entry, count: amount }] : [];
  });
}

/** @type {Record<string, (left: Entry[], value: number) => Entry[]>} */
const LAWS = {
  divide: (left, value) => left.map((entry) => ({ ...entry, z: entry.z / value })),
  count: (left, value) => highest(left, value),
  ratio: (left, value) => left.filter(({ z }) => z >= Math.max(...left.map((entry) => entry.z)) + Math.log(value)),
  share: (left, value) => {
    const whole = logSum(left);
    let [sum, total] = [0, 0];
    for (const { z, count } of left.toSorted(compareHeight)) {
      if (sum >= value) break;
      const weight = Math.exp(z - whole);
      const amount = Math.min(count, Math.ceil((value - sum) / weight - 1e-9)); // the token that reaches the share stays
      [sum, total] = [sum + amount * weight, total + amount];
    }
    return highest(left, Math.max(total, 1));
  },
};

/**
 * @param {Entry[]} left @param {Stage} stage @param {Step} step @param {number} at of the same stage in the record; -1: it has none
 * @returns {Entry[]}
 */
function applyLaw(left, stage, step, at) {
  const entry = stageNamed.get(stage.stage);
  const law = LAWS[entry?.law ?? ""];
  if (law) return law(left, Number(stage[Object.keys(entry?.rule ?? {})[0] ?? ""]));
  return left.filter(({ candidate }) => candidate?.removed_by !== at || at < 0); // as it did in the record
}
