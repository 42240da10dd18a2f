/**
 * The inside of a step, as /v1/inside answers it: attention weights, logit attribution, the lens (src/cutaway/features/inside).
 *
 * Knows which tensors are a model's parts (features/page/inside.py), and how they add up; not what a page reads of them.
 */

import { arraysOf } from "./inside-arrays.js";
import {
  attentionAlong, attentionScores, attentionWeights, convolutionTerms, dot, firstSeen, gatherBlocks, pullBackMatrix,
  pullBackNorm, size, sum, times,
} from "./linear.js";
import { safetensors } from "./safetensors.js";
import { readSettings } from "./settings.js";

/**
 * @typedef {import("./linear.js").Direction} Direction
 * @typedef {import("./linear.js").Attention} Attention
 * @typedef {import("./core.js").Core} Core
 * @typedef {import("./loop.js").Loop} Loop
 * @typedef {[buffer: number, width: number]} Tensor
 *
 * @typedef {{input: Tensor, matrix: number, rows: number, is_float: boolean, bias: number[] | null}} Linear
 * @typedef {import("./linear.js").Norm & {input: Tensor}} NormOp
 * factor: of its sum in the stream; path: the ops from it back to the heads of a layer
 * @typedef {{name: string, given: Tensor, factor: number, path: any[], layer: number | null}} Part
 * kv_bytes: of a token's keys and values
 * @typedef {Attention & {layer: number, query: Tensor, out: Tensor, kv_bytes: number}} Attends
 * at: where in the text's state its inputs before the row's own are
 * @typedef {import("./linear.js").Convolution & {input: Tensor, out: Tensor, at: number}} Convolves
 * attends, convolves: by layer; longest: the longest text of which a convolution's attribution is split by token
 * @typedef {{stream: Tensor[], attends: (Attends | null)[], convolves: (Convolves | null)[], longest: number, parts: Part[],
 *   norm: NormOp, normed: Tensor, head: Linear & {out: Tensor}}} Anatomy
 *
 * @typedef {ReturnType<typeof lensOf>} Lens
 * @typedef {{prompt: number[], generated: number[], step: number, row: string | null, drawn: number | null,
 *   settings: Record<string, any>, interventions: any[] | null, rival: number | null}} Asked
 */

const SINK = 0.3; // a head with more of its weight than this at position 0 is one
const NEAR = 2e-6, NEAR_POSITIONS = 4e-5, NEAR_MIXED = 2e-5, NEAR_STATES = 2e-4, NEAR_CONVOLVED = 1e-4; // as features/inside has them

/**
 * @param {Loop} loop @param {Anatomy | null} anatomy @param {Asked} question @param {AbortSignal} signal
 * @returns {Promise<ArrayBuffer | null>} a safetensors file; null: it was stopped
 */
export async function computeInside(loop, anatomy, question, signal) {
  if (!anatomy) throw new Error("this page cannot look into its model; cutaway serve may");
  if (question.interventions?.length) throw new Error("interventions: this page cannot do that; cutaway serve can");
  const { core } = loop, ids = [...question.prompt, ...question.generated.slice(0, question.step)], before = ids.slice(0, -1);
  if (await loop.reader.read(before, signal, 0) < 0) return null;
  const earlier = anatomy.convolves.map((op) => op && core.state(before.length, op.at, (op.taps - 1) * op.width));
  core.tap(/** @type {number} */ (ids.at(-1)), before.length);
  loop.reader.cachedIds = ids;
  const draw = core.draw({ chain: GREEDY, ...PLAIN, position: ids.length });
  const row = draw.logits_hash.toString(16).padStart(16, "0");
  if (question.row !== null && row !== question.row) {
    throw new Error(`row: this model gives other logits than ${question.row} at this step; they are of another model, or the tokens are others`);
  }
  const token = /** @type {number} */ (question.generated[question.step]);
  const rival = question.rival ?? draw.candidates.map(({ id }) => id).find((id) => id !== token) ?? 0;
  if (rival === token) throw new Error("rival: this is the token of the step; name another");
  const look = new Look(core, anatomy, ids, earlier), attributed = look.attribution(token, rival);
  const stream = anatomy.stream.map((tensor) => core.read(tensor)); // before the lens: it has no tap
  const lens = lensOf(loop, stream, question, ids.length, row);
  return safetensors(arraysOf(look, attributed, lens), {
    cutaway: loop.about.head.cutaway, trace: "", model: loop.about.head.model, step: String(question.step), row,
    as_run: JSON.stringify(question.row === null ? null : true), token: String(token), rival: String(rival),
    parts: anatomy.parts.map(({ name }) => name).join(","),
    rounding: String(attributed.rounding), bias: String(attributed.bias), total: String(attributed.total),
    kv_bytes: String(look.kvBytes),
    sinks: String(look.weights.reduce((sum, weights) => sum + look.heads((head) => (weights?.[head * look.n] ?? 0) > SINK).filter(Boolean).length, 0)),
    lens_first: JSON.stringify(index(lens.rank.indexOf(1))), lens_settled: JSON.stringify(settledFrom([...lens.rank], (rank) => rank === 1)),
    draw_settled: JSON.stringify(lens.drawn && settledFrom([...lens.drawn], (id) => id === lens.drawn?.at(-1))), experts: "{}",
    names: JSON.stringify(Object.fromEntries([token, rival, ...lens.ids, ...(lens.drawn ?? [])].map((id) => [id, loop.tokenizer.name(id)]))),
  });
}

/** Settings that change no draw. */
const OF_NO_DRAW = ["forced", "candidates", "logprobs", "prompt_logprobs", "ledger", "speculate", "kv_cache", "cache_prompt", "priority"];
/** @type {import("./core.js").Chain} */
const GREEDY = { greedy: true, stages: [], history: false, prompt: [] };
const PLAIN = { seed: 0n, output: [], candidates: 2, tracked: [] };

/** A row's tensors, with the attention weights and values of each layer. */
export class Look {
  /**
   * @param {Core} core @param {Anatomy} anatomy @param {number[]} ids of the text up to the row's token
   * @param {(Float32Array | null)[]} earlier by layer: what its convolution read before the row
   */
  constructor(core, anatomy, ids, earlier) {
    this.core = core;
    this.anatomy = anatomy;
    this.ids = ids;
    this.n = ids.length;
    const readCache = (/** @type {Attends} */ op, /** @type {boolean} */ values) =>
      gatherBlocks((block) => core.readStored(op, block, values), op, this.n, values ? op.value_dim : op.head_dim);
    this.values = anatomy.attends.map((op) => op && readCache(op, true));
    this.keys = anatomy.attends.map((op) => op && readCache(op, false));
    this.queries = anatomy.attends.map((op) => op && core.read(op.query));
    this.scores = anatomy.attends.map((op, i) => op && attentionScores(op, /** @type {Float32Array} */ (this.queries[i]),
      /** @type {Float32Array} */ (this.keys[i]), this.n));
    this.weights = anatomy.attends.map((op, i) => op && attentionWeights(op, /** @type {Float64Array} */ (this.scores[i]), this.n));
    this.convolved = anatomy.convolves.map((op, layer) => op && convolutionTerms(op, concatenate(earlier[layer], core.read(op.input))));
    this.check();
  }

  get kvBytes() {
    return sum(Float64Array.from(this.anatomy.attends, (op) => (op ? op.kv_bytes * (this.n - firstSeen(op, this.n)) : 0)));
  }

  /** @template T @param {(head: number) => T} compute @returns {T[]} */
  heads(compute) {
    return Array.from({ length: this.anatomy.attends.find((op) => op)?.heads ?? 0 }, (_, head) => compute(head));
  }

  /** Throw unless the weights reproduce the outputs of heads, and of convolutions. */
  check() {
    this.anatomy.convolves.forEach((op, layer) => {
      if (!op) return;
      const out = this.core.read(op.out), most = out.reduce((top, value) => Math.max(top, Math.abs(value)), 1e-30);
      out.forEach((value, at) => {
        let mixed = op.bias?.[at] ?? 0;
        for (let i = at; i < op.taps * op.width; i += op.width) mixed += this.convolved[layer]?.[i] ?? 0;
        checkNear(mixed, value, NEAR_CONVOLVED * most, `the outputs of layer ${layer}'s convolution`);
      });
    });
    this.anatomy.attends.forEach((op, layer) => {
      if (!op) return;
      const weights = /** @type {Float64Array} */ (this.weights[layer]), values = /** @type {Float32Array} */ (this.values[layer]);
      const out = this.core.read(op.out), most = values.reduce((top, value) => Math.max(top, Math.abs(value)), 1e-30);
      for (let at = 0; at < out.length; at++) {
        const head = Math.floor(at / op.value_dim), from = Math.floor((head * op.kv_heads) / op.heads) * this.n * op.value_dim + (at % op.value_dim);
        let mixed = 0;
        for (let i = 0; i < this.n; i++) mixed += (weights[head * this.n + i] ?? 0) * (values[from + i * op.value_dim] ?? 0);
        checkNear(mixed, out[at] ?? 0, NEAR_MIXED * most, `the heads' outputs of layer ${layer}`);
      }
    });
  }

  /** @param {number} token @param {number} rival what part, head and position add to the difference of their logits */
  attribution(token, rival) {
    const { core, anatomy } = this, { norm, normed, head, parts: all } = anatomy, hidden = normed[1];
    const [first, second] = [token, rival].map((id) => Float64Array.from(core.decode(head.matrix, id, id + 1, hidden)));
    if (!first || !second) throw new Error("a token has no row in the head");
    const difference = first.map((value, i) => value - (second[i] ?? 0)), read = core.read(normed);
    let terms = size(first, read) + size(second, read);
    const stream = pullBackNorm(norm, core.read(norm.input), {
      along: difference, constant: head.bias ? (head.bias[token] ?? 0) - (head.bias[rival] ?? 0) : 0,
      rounding: head.is_float ? 0 : dot(difference, this.rounding(core.read(head.input))),
    });
    const parts = [], rounded = new Float64Array(this.weights.length);
    /** @type {Float64Array[]} */
    const heads = this.weights.map(() => new Float64Array(this.heads(() => 0)));
    /** @type {Float64Array[]} */
    const positions = heads.map(({ length }) => new Float64Array(length * this.n));
    /** @type {Float64Array[]} */
    const convolutions = [];
    for (const part of all) {
      const output = core.read(part.given), here = times(stream.along, part.factor);
      parts.push(dot(here, output));
      terms += size(here, output);
      if (part.layer === null) continue;
      const layer = part.layer, after = part.path.reduce((direction, op) => this.pullBack(op, direction), { along: here, constant: 0, rounding: 0 });
      if (anatomy.convolves[layer]) {
        if (this.n <= anatomy.longest) convolutions.push(this.convolutionOf(part, after, here, output));
        continue;
      }
      const shares = this.headsOf(part, after, here, output);
      [heads[layer], positions[layer], rounded[layer]] = [shares.heads, shares.positions, after.rounding];
    }
    const logits = core.read(head.out), total = (logits[token] ?? 0) - (logits[rival] ?? 0);
    checkNear(sum(Float64Array.from(parts)) + stream.constant + stream.rounding, total, NEAR * terms, "the parts");
    return { parts, heads, positions, convolutions, rounded, bias: stream.constant, rounding: stream.rounding, total };
  }

  /** @param {Part} part @param {Direction} after of its heads' outputs @param {Float64Array} here of what it gave @param {Float32Array} output */
  headsOf(part, after, here, output) {
    const layer = /** @type {number} */ (part.layer), op = /** @type {Attends} */ (this.anatomy.attends[layer]), out = this.core.read(op.out);
    const heads = Float64Array.from(this.heads((head) => {
      const [from, to] = [head * op.value_dim, (head + 1) * op.value_dim];
      return dot(after.along.subarray(from, to), out.subarray(from, to));
    }));
    const positions = attentionAlong(op, /** @type {Float64Array} */ (this.weights[layer]), /** @type {Float32Array} */ (this.values[layer]), after.along, this.n);
    const terms = size(after.along, out) + size(here, output), whole = sum(heads);
    checkNear(whole + after.constant + after.rounding, dot(here, output), NEAR * terms, `the heads of ${part.name}`);
    checkNear(sum(positions), whole, NEAR_POSITIONS * terms, `the positions of ${part.name}`);
    return { heads, positions };
  }

  /** Return what each position adds through a convolution, which counts as one head. @param {Part} part @param {Direction} after @param {Float64Array} here @param {Float32Array} output */
  convolutionOf(part, after, here, output) {
    const layer = /** @type {number} */ (part.layer), op = /** @type {Convolves} */ (this.anatomy.convolves[layer]);
    const values = /** @type {Float64Array} */ (this.convolved[layer]), out = this.core.read(op.out), positions = new Float64Array(this.n);
    for (let tap = Math.max(op.taps - this.n, 0); tap < op.taps; tap++) {
      positions[this.n - op.taps + tap] = dot(after.along, values.subarray(tap * op.width, (tap + 1) * op.width));
    }
    const terms = size(after.along, out) + size(here, output), whole = dot(after.along, out);
    checkNear(whole + after.constant + after.rounding, dot(here, output), NEAR * terms, `the convolution of ${part.name}`);
    checkNear(sum(positions) + (op.bias ? dot(after.along, Float64Array.from(op.bias)) : 0), whole, NEAR_STATES * terms, `the positions of ${part.name}`);
    return positions;
  }

  /** @param {Float32Array} x @returns {Float64Array} what is added to activations that a quantised matrix reads */
  rounding(x) {
    return Float64Array.from(this.core.roundActivations(x), (value, i) => value - /** @type {number} */ (x[i]));
  }

  /** @param {any} op between the heads and the stream @param {Direction} after @returns {Direction} the same function of its input */
  pullBack(op, after) {
    if (op.kind === "scale") return { ...after, along: times(after.along, op.factor) };
    const x = this.core.read(op.input);
    if (op.kind === "mul") return { ...after, along: after.along.map((by, i) => by * (x[i] ?? 0)) };
    if (op.kind !== "linear") return pullBackNorm(op, x, after);
    return pullBackMatrix(this.core.decode(op.matrix, 0, op.rows, op.input[1]), op.bias, op.is_float ? null : this.rounding(x), after);
  }
}

/**
 * Apply the head to the stream before the first layer and after each, and draw from these logits with the same luck.
 * @param {Loop} loop @param {Float32Array[]} stream @param {Asked} asked @param {number} position @param {string} row
 */
function lensOf(loop, stream, { prompt, generated, step, settings, drawn: drawnId }, position, row) {
  const { core } = loop;
  const ofDraw = Object.fromEntries(Object.entries(settings).filter(([name]) => !OF_NO_DRAW.includes(name)));
  let chain = null;
  try {
    chain = loop.chain(readSettings(ofDraw, loop.about, loop.tokenizer), prompt);
  } catch { /* the run had something that a page cannot repeat: a grammar, a check */ }
  core.head(stream);
  const draws = stream.map((_, i) => {
    core.choose(i);
    return core.draw({
      ...PLAIN, chain: chain ?? GREEDY, seed: BigInt(settings.seed ?? 0), position, output: generated.slice(0, step), forced: generated[step],
    });
  });
  if (draws.at(-1)?.logits_hash.toString(16).padStart(16, "0") !== row) throw new Error("the last layer's lens is not the row: this is a bug in cutaway");
  return {
    ids: Int32Array.from(draws, ({ candidates }) => candidates[0]?.id ?? 0),
    logprobs: Float32Array.from(draws, ({ candidates, log_sum_exp }) => (candidates[0]?.logit ?? 0) - log_sum_exp),
    rank: Int32Array.from(draws, ({ rank }) => rank),
    drawn: chain === null || draws.at(-1)?.sampled_id !== drawnId ? null : Int32Array.from(draws, ({ sampled_id }) => sampled_id),
  };
}

/** @param {number} row @returns {number | null} */
const index = (row) => (row < 0 ? null : row);

/** @template T @param {T[]} all @param {(one: T) => boolean} holds @returns {number | null} from where on it holds */
function settledFrom(all, holds) {
  const start = all.findLastIndex((element) => !holds(element)) + 1;
  return start < all.length ? start : null;
}

/** @param {number} actual @param {number} expected @param {number} bound @param {string} name */
function checkNear(actual, expected, bound, name) {
  if (!(Math.abs(actual - expected) <= bound)) throw new Error(`${name} add up to ${actual.toFixed(6)} and not to ${expected.toFixed(6)}: this is a bug in cutaway`);
}

/** @param {Float32Array | null | undefined} first @param {Float32Array} second */
function concatenate(first, second) {
  const floats = new Float32Array((first?.length ?? 0) + second.length);
  floats.set(first ?? []);
  floats.set(second, first?.length ?? 0);
  return floats;
}
