/**
 * A step's row as it reached the chain's filters, as far as the record tells it.
 *
 * Knows what biases, penalties and processors can have done to tokens that are not on record.
 * Knows no document.
 */

import { sum } from "./unrecorded-mass.js";
/** @import { Trace, Step, Candidate } from "../state/trace.js" */
/** @import { Group, Span } from "./unrecorded-mass.js" */
/** @import { Row } from "./estimate.js" */
/** @import { Stage } from "./numbers.js" */

const FILTERS = ["temperature", "top_k", "top_p", "min_p"];

/** @param {Stage[]} chain @returns {Stage[]} those that change logits one by one: the first ones */
export function adjustingStages(chain) {
  const first = chain.findIndex(({ stage }) => FILTERS.includes(stage));
  return chain.slice(0, first < 0 ? chain.length : first);
}

/** @param {Trace} trace @param {Step} step @returns {Row} before temperature and filters */
export function beginning(trace, step) {
  const adjusting = adjustingStages(trace.head.chain);
  const alive = adjustedLogits(step, adjusting.length);
  const ref = alive[0]?.logit ?? step.maximum;
  const after = step.stages[adjusting.length - 1];
  const all = Math.exp((after?.log_sum_exp ?? step.log_sum_exp) - ref);
  const left = all - sum(alive.map(({ logit }) => Math.exp(logit - ref)));
  const off = all * 1e-9;
  const wide = adjusting.reduce((groups, stage) => shifted(groups, changeOf(trace, step, stage)),
    sketched(trace, step));
  const groups = adjusting.every(({ stage }) => stage in CHANGES) ? wide
    : [{ count: (after?.survivors ?? 0) - alive.length, low: -Infinity, high: Infinity }];
  const rest = { groups: limited(groups, ref, left + off), mass: span(groups, ref, left, off), ref };
  const known = alive.map(({ c, logit }, i) => {
    const before = c.rank - 1 - i;
    const place = adjusting.length ? above(rest.groups, logit) : /** @type {Span} */ ([before, before]);
    return { id: c.id, logit, luck: c.luck, above: place, fate: /** @type {const} */ ("in") };
  });
  return { known, rest, least: 0, slack: slackOf(step) };
}

/** @param {Step} step @param {number} stages how many adjust @returns {{c: Candidate, logit: number}[]} */
function adjustedLogits(step, stages) {
  return step.candidates
    .filter(({ removed_by: by }) => by === null || by >= stages)
    .map((c) => ({ c, logit: Math.fround(c.logit + c.delta) }))
    .sort((a, b) => b.logit - a.logit || a.c.id - b.c.id);
}

/** @param {Step} step @returns {number} a step of float32, and what float64 loses */
function slackOf(step) {
  const logits = step.candidates.flatMap(({ logit, delta }) => [logit, logit + delta]);
  return 2 ** -22 * Math.max(...logits.map(Math.abs)) + 1e-9;
}

/** @param {Trace} trace @param {Step} step @returns {Group[]} the rest by the model's own logits */
function sketched(trace, step) {
  const counts = [...step.sketch];
  for (const { logit } of step.candidates) {
    const bin = Math.min(Math.floor(step.maximum - logit), counts.length - 1);
    counts[bin] = (counts[bin] ?? 0) - 1;
  }
  const top = step.candidates.filter(({ rank }) => rank <= trace.head.candidates);
  const highest = Math.min(step.maximum, ...top.map(({ logit }) => logit)); // the rest are below
  const last = counts.length - 1;
  return counts.flatMap((count, bin) => (count > 0 ? [{
    count, low: bin === last ? -Infinity : step.maximum - bin - 1,
    high: Math.min(step.maximum - bin, highest),
  }] : []));
}

/**
 * @param {Group[]} groups @param {number} ref @param {number} left what they weigh together
 * @param {number} off by how much that may be wrong @returns {Span}
 */
function span(groups, ref, left, off) {
  const least = sum(groups.map((g) => g.count * Math.exp(g.low - ref)));
  const most = sum(groups.map((g) => g.count * Math.exp(g.high - ref)));
  const within = (/** @type {number} */ mass) => Math.max(0, Math.min(Math.max(mass, least), most));
  return groups.length ? [within(left - off), within(left + off)] : [0, 0];
}

/** @param {Group[]} groups @param {number} ref @param {number} most @returns {Group[]} none weighs more */
function limited(groups, ref, most) {
  const highest = ref + Math.log(Math.max(most, 0));
  return groups.map((g) => ({ ...g, high: Math.max(g.low, Math.min(g.high, highest)) }));
}

/** @param {Group[]} groups @param {number} logit @returns {Span} how many are above it */
const above = (groups, logit) => [
  sum(groups.filter((g) => g.low > logit).map((g) => g.count)),
  sum(groups.filter((g) => g.high >= logit).map((g) => g.count)),
];

// -- what may have been done to a token of the rest -----------------------------------------------

/** @typedef {(logit: number) => number[]} Change what a logit may have become; it keeps the order */

/** @param {Group[]} groups @param {Change} change @returns {Group[]} wide enough for who was changed */
const shifted = (groups, change) => groups.map(({ count, low, high }) => ({
  count, low: Math.min(...change(low)), high: Math.max(...change(high)),
}));

/** @type {Record<string, (trace: Trace, step: Step, rule: Stage) => Change>} */
const CHANGES = { logit_bias: biased, penalties: penalised };

/** @param {Trace} trace @param {Step} step @param {Stage} rule @returns {Change} */
const changeOf = (trace, step, rule) =>
  CHANGES[rule.stage]?.(trace, step, rule) ?? ((logit) => [logit]);

/** @param {Step} step @returns {(id: number) => boolean} whether a token is of the rest */
function unknown(step) {
  const known = new Set(step.candidates.map(({ id }) => id));
  return (id) => !known.has(id);
}

/** @param {Trace} _ @param {Step} step @param {Stage} rule @returns {Change} */
function biased(_, step, rule) {
  const isUnknown = unknown(step);
  const biases = Object.entries(rule["bias"]).filter(([id]) => isUnknown(Number(id)));
  return (logit) => [logit, ...biases.map(([, bias]) => logit + Number(bias))];
}

/** @param {Trace} trace @param {Step} step @param {Stage} rule @returns {Change} */
function penalised(trace, step, { repetition, presence, frequency }) {
  const isUnknown = unknown(step);
  const counts = new Map();
  for (const id of trace.outputIds.slice(0, step.index).filter(isUnknown)) {
    counts.set(id, (counts.get(id) ?? 0) + 1);
  }
  const most = Math.max(0, ...counts.values());
  const seen = most > 0 || trace.head.prompt_token_ids.some(isUnknown);
  const costs = most ? [0, presence + frequency, presence + frequency * most] : [0];
  return (logit) => {
    const repeated = logit > 0 ? logit / repetition : logit * repetition;
    return (seen ? [logit, repeated] : [logit]).flatMap((each) => costs.map((cost) => each - cost));
  };
}
