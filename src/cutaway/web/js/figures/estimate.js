/**
 * What if: one step under other settings, answered from its record alone.
 *
 * The tokens on record go through the chain one by one, the rest as a whole (unrecorded-mass.js); so each
 * probability is an interval, and it holds: a test has exact figures. Every filter keeps a
 * prefix of one order, the best first, and temperature does not change that order. Penalties and
 * biases stay as they were. Two logits that float32 makes equal by dividing are not minded.
 * Knows the stages' rules. Knows no document.
 */

import { cut, heated, heaviest, massOf, size, sum } from "./unrecorded-mass.js";
import { beginning } from "./recorded.js";
/** @import { Rest, Span } from "./unrecorded-mass.js" */
/** @import { Trace, Step } from "../state/trace.js" */

/**
 * A token on record: its logit as it is now, how many of the rest are above it, and whether it is in.
 * @typedef {{id: number, logit: number, luck: number | null, above: Span, fate: Fate}} Known
 * @typedef {"in" | "maybe" | "out"} Fate
 * Known tokens best first. `least`: what all who are in weigh at least; `slack`: how far off float32
 * may be, in nats.
 * @typedef {{known: Known[], rest: Rest, least: number, slack: number}} Row
 * @typedef {{temperature: number, top_p: number, top_k: number, min_p: number}} Settings
 * `leader`: who wins of those on record; null: their luck is not on record. `rivals`: whether a
 * token that is not on record may win.
 * @typedef {{chances: Map<number, {low: number, high: number, fate: Fate}>, others: Span,
 *   leader: number | null, certain: boolean, rivals: boolean}} Estimate
 */

/** The orders of the stages, by preset: as sampling/presets.py has them. */
const ORDERS = /** @type {const} */ ({
  cutaway: ["temperature", "top_k", "top_p", "min_p"],
  hf: ["temperature", "top_k", "top_p", "min_p"],
  vllm: ["temperature", "min_p", "top_k", "top_p"],
  "llama.cpp": ["top_k", "top_p", "min_p", "temperature"],
  "mlx-lm": ["top_p", "min_p", "top_k", "temperature"],
});

/** @typedef {(row: Row, settings: Settings) => Row} Stage */
/** @type {Record<string, Stage>} */
const STAGES = {
  temperature: (row, { temperature }) => (temperature === 1 ? row : divided(row, temperature)),
  top_k: (row, { top_k }) => (top_k > 0 ? topK(row, top_k) : row),
  top_p: (row, { top_p }) => (top_p < 1 ? topP(row, top_p) : row),
  min_p: (row, { min_p }) => (min_p > 0 ? minP(row, min_p) : row),
};

/**
 * @param {Trace} trace @param {Step} step @param {Settings} settings
 * @returns {Estimate} of the step with the same logits, and with the same luck
 */
export function estimate(trace, step, settings) {
  if (settings.temperature > 0 && same(settings, settingsOf(trace))) return recorded(step);
  const first = beginning(trace, step);
  if (settings.temperature === 0) return told(greedy(first), [], 0);
  /** @type {Record<string, readonly string[]>} */
  const orders = ORDERS;
  let row = first;
  for (const name of orders[trace.head.params["preset"]] ?? ORDERS.cutaway) {
    row = STAGES[name]?.(row, settings) ?? row;
  }
  return told(row, scores(row), restScore(trace, step, first, row, settings.temperature));
}

/** @param {Trace} trace @returns {Settings} those of a run */
export const settingsOf = ({ head: { params } }) => ({
  temperature: Number(params["temperature"] ?? 1), top_p: Number(params["top_p"] ?? 1),
  top_k: Number(params["top_k"] ?? 0), min_p: Number(params["min_p"] ?? 0),
});

/** @param {Settings} a @param {Settings} b @returns {boolean} */
const same = (a, b) =>
  a.temperature === b.temperature && a.top_p === b.top_p && a.top_k === b.top_k && a.min_p === b.min_p;

/** @param {Step} step @returns {Estimate} what needs no estimate: how it was drawn */
function recorded(step) {
  const chances = new Map(step.candidates.map(({ id, final_logprob: logprob }) => {
    const share = logprob === null ? 0 : Math.exp(Math.min(logprob, 0));
    return [id, { low: share, high: share, fate: /** @type {Fate} */ (logprob === null ? "out" : "in") }];
  }));
  const rest = Math.max(0, 1 - sum([...chances.values()].map(({ low }) => low)));
  const certain = chances.has(step.own);
  return { chances, others: [rest, rest], leader: certain ? step.own : null, certain, rivals: !certain };
}

// -- the stages -----------------------------------------------------------------------------------

/** @param {Row} row @returns {Row} the likeliest alone */
function greedy(row) {
  const beaten = (row.known[0]?.above[1] ?? 1) > 0;
  const fate = (/** @type {number} */ i) => /** @type {Fate} */ (i ? "out" : beaten ? "maybe" : "in");
  const rest = cut(row.rest, 0, beaten ? 1 : 0);
  return { ...row, known: row.known.map((token, i) => ({ ...token, fate: fate(i) })), rest };
}

/** @param {Row} row @param {number} temperature @returns {Row} */
function divided(row, temperature) {
  const by = Math.fround(temperature);
  const slack = row.slack / Math.min(by, 1);
  const rest = heated(row.rest, by);
  const known = row.known.map((token) => ({ ...token, logit: Math.fround(token.logit / by) }));
  const mass = /** @type {Span} */ ([rest.mass[0] * Math.exp(-slack), rest.mass[1] * Math.exp(slack)]);
  return { known, rest: { ...rest, mass }, least: 0, slack };
}

/** @param {Row} row @param {number} k @returns {Row} the k best */
function topK(row, k) {
  const fates = row.known.map(({ above: [low, high] }, i) => fateOf(i + high < k, i + low >= k));
  const stay = kept(row, fates);
  const sure = stay.known.filter(({ fate }) => fate === "in").length;
  const open = stay.known.filter(({ fate }) => fate !== "out").length;
  const least = Math.max(0, Math.min(k - open, surelyIn(row)));
  return { ...stay, rest: cut(stay.rest, least, Math.max(0, k - sure)) };
}

/** @param {Row} row @param {number} p @returns {Row} the best until they have p of the mass */
function topP(row, p) {
  const [low, high] = total(row);
  const [need, enough] = [p * low * Math.exp(-row.slack), p * high * Math.exp(row.slack)];
  let better = 0;
  const fates = row.known.map((token, i) => {
    const [least, most] = token.above.map((count) => massOf(row.rest, count));
    const [from, to] = [better + (least?.[0] ?? 0), better + (most?.[1] ?? 0)];
    better += token.fate === "out" ? 0 : weight(row, token);
    const first = i === 0 && token.above[1] === 0;
    return fateOf(first || to < need, !first && from >= enough);
  });
  const stay = kept(row, fates);
  // What is kept weighs p of all, and not more than the token that crosses it beyond that.
  const [sure, open] = weighed(stay);
  const room = Math.max(0, enough + heaviest(row.rest) - sure);
  const [a, b] = stay.rest.mass;
  const mass = /** @type {Span} */ ([Math.min(b, Math.max(a, need - open)), Math.min(b, room)]);
  return { ...stay, rest: { ...stay.rest, mass }, least: need };
}

/** @param {Row} row @param {number} p @returns {Row} who has p of the best one's probability */
function minP(row, p) {
  const own = row.known[0]?.logit ?? -Infinity;
  const best = Math.max(own, row.rest.groups[0]?.high ?? -Infinity);
  const [need, enough] = [own + Math.log(p) - row.slack, best + Math.log(p) + row.slack];
  const fates = row.known.map(({ logit }, i) =>
    fateOf((i === 0 && best === own) || logit >= enough, logit < need));
  const stay = kept(row, fates);
  const most = sum(row.rest.groups.filter((g) => g.high >= need).map((g) => g.count));
  const least = sum(row.rest.groups.filter((g) => g.low >= enough).map((g) => g.count));
  return { ...stay, rest: cut(stay.rest, Math.min(least, most), Math.min(most, size(stay.rest))) };
}

/** @param {boolean} stays @param {boolean} goes @returns {Fate} */
const fateOf = (stays, goes) => (goes ? "out" : stays ? "in" : "maybe");

/**
 * @param {Row} row @param {Fate[]} fates what a filter does to each known token
 * @returns {Row} after it; since it keeps a prefix, they tell of the rest between them
 */
function kept(row, fates) {
  const known = row.known.map((token, i) =>
    ({ ...token, fate: worse(token.fate, fates[i] ?? "maybe") }));
  const those = (/** @type {Fate} */ fate) => known.filter((token) => token.fate === fate);
  const most = Math.min(size(row.rest), ...those("out").map(({ above }) => above[1]));
  const least = Math.max(0, ...those("in").map(({ above }) => above[0]));
  return { ...row, known, rest: cut(row.rest, Math.min(least, most), most), least: 0 };
}

/** @param {Fate} a @param {Fate} b @returns {Fate} */
const worse = (a, b) => (a === "out" || b === "out" ? "out" : a === "in" ? b : a);

// -- weights --------------------------------------------------------------------------------------

/** @param {Row} row @param {Known} token @returns {number} */
const weight = (row, token) => Math.exp(token.logit - row.rest.ref);

/** @param {Row} row @returns {Span} what the known tokens weigh that are in, and that may be */
function weighed(row) {
  const of = (/** @type {Fate[]} */ ...fates) =>
    sum(row.known.filter(({ fate }) => fates.includes(fate)).map((token) => weight(row, token)));
  return [of("in"), of("in", "maybe")];
}

/** @param {Row} row @returns {Span} what all weigh that are in */
function total(row) {
  const [sure, open] = weighed(row);
  return [Math.max(row.least, sure + row.rest.mass[0]), open + row.rest.mass[1]];
}

/** @param {Row} row @returns {number} how many of the rest are in for certain */
const surelyIn = (row) =>
  sum(row.rest.groups.filter((group) => group.low > -Infinity).map((group) => group.count));

// -- what comes out -------------------------------------------------------------------------------

/**
 * @param {Row} row @param {{token: Known, score: number}[]} ranked best first; none: nothing is drawn
 * @param {number} beyond the most that one of the rest can score
 * @returns {Estimate}
 */
function told(row, ranked, beyond) {
  const [, high] = total(row);
  const off = 2 * row.slack;
  const chances = new Map(row.known.map((token, i) => [token.id, chance(row, token, i, high, off)]));
  const [least, most] = row.rest.mass;
  const [sure, maybe] = weighed(row);
  const others = /** @type {Span} */ ([share(least, maybe + least, 0), share(most, sure + most, 0)]);
  const open = row.known.filter(({ fate }) => fate !== "out");
  if (open.length === 1 && size(row.rest) === 0) {
    return { chances, others, leader: open[0]?.id ?? null, certain: true, rivals: false };
  }
  const [first, second] = ranked;
  const rivals = size(row.rest) > 0 && !(first && beyond < first.score - row.slack);
  const ahead = !second || (first?.score ?? 0) - second.score > row.slack;
  const certain = first?.token.fate === "in" && ahead && !rivals;
  return { chances, others, leader: first?.token.id ?? null, certain, rivals };
}

/**
 * @param {Row} row @param {Known} token @param {number} place its own among the known
 * @param {number} most what all weigh at most @param {number} off
 */
function chance(row, token, place, most, off) {
  if (token.fate === "out") return { low: 0, high: 0, fate: token.fate };
  // Where it is in, so is whoever is better.
  const others = row.known.filter((other, i) => i <= place || other.fate === "in");
  const [above] = massOf(row.rest, token.above[0]);
  const least = sum(others.map((other) => weight(row, other))) + Math.max(above, row.rest.mass[0]);
  const own = weight(row, token);
  const low = token.fate === "in" ? share(own, most, 0) * Math.exp(-off) : 0;
  const high = Math.min(1, share(own, Math.max(least, row.least), 1) * Math.exp(off));
  return { low, high, fate: token.fate };
}

/**
 * @param {number} part @param {number} whole @param {number} unknown where nothing can be told
 * @returns {number}
 */
const share = (part, whole, unknown) =>
  whole > 0 && Number.isFinite(whole) ? Math.min(1, part / whole) : unknown;

/** @param {Row} row @returns {{token: Known, score: number}[]} the draw among the known, best first */
function scores(row) {
  return row.known
    .filter(({ fate, luck }) => fate !== "out" && luck !== null)
    .map((token) => ({ token, score: token.logit + (token.luck ?? 0) }))
    .sort((a, b) => b.score - a.score);
}

/** Luck ends here: it is made of 32 bits (sampling/luck.py). */
const MOST_LUCK = 33 * Math.LN2;

/**
 * Nobody who was in beat the recorded winner; so luck that is not on record has a bound.
 * @param {Trace} trace @param {Step} step @param {Row} before @param {Row} after
 * @param {number} temperature the new one @returns {number} the most that one of the rest can score
 */
function restScore(trace, step, before, after, temperature) {
  const luckiest = Math.max(...after.rest.groups.map(({ high }) => high)) + MOST_LUCK;
  const old = Math.fround(settingsOf(trace).temperature);
  const own = before.known.find(({ id }) => id === step.own);
  const survivors = step.stages.at(-1)?.survivors ?? trace.head.vocab_size;
  const were = survivors - step.candidates.filter((c) => c.final_logprob !== null).length;
  if (old === 0 || !own || own.luck === null || size(after.rest) > were) return luckiest;
  const gained = 1 - Math.fround(temperature) / old; // by a logit that was divided by the other
  const edges = after.rest.groups.flatMap(({ low, high }) => [low, high]);
  const most = gained === 0 ? 0 : Math.max(...edges.map((edge) => edge * gained));
  return Math.min(luckiest, Math.fround(own.logit / old) + own.luck + most);
}
