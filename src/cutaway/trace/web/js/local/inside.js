/**
 * The inside of a step, as /v1/inside answers it: attention weights, logit attribution, the lens (src/cutaway/lab/inside).
 *
 * Knows which tensors are a model's parts (lab/page_inside.py), and what a page reads of them (lab/inside/page_arrays.py).
 */

import { attentionAlong, attentionWeights, beforeMatrix, beforeNorm, dot, gathered, rounding, size, sum, times } from "./linear.js";
import { safetensors } from "./safetensors.js";

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
 * @typedef {{stream: Tensor[], attends: (Attention & {layer: number, query: Tensor, out: Tensor})[], parts: Part[], norm: NormOp,
 *   normed: Tensor, head: Linear & {out: Tensor}}} Anatomy
 *
 * @typedef {{prompt: number[], generated: number[], step: number, row: string | null, drawn: number | null,
 *   settings: Record<string, any>, interventions: any[] | null, rival: number | null}} Asked
 */

const MOST = 8, SINK = 0.3, SCALE = 255;
const NEAR = 2e-6, NEAR_POSITIONS = 4e-5, NEAR_MIXED = 2e-5; // shares of a sum's terms, as lab/inside has them

/**
 * @param {Loop} loop @param {Anatomy | null} anatomy @param {Asked} asked @param {AbortSignal} signal
 * @returns {Promise<ArrayBuffer | null>} a safetensors file; null: it was stopped
 */
export async function inside(loop, anatomy, asked, signal) {
  if (!anatomy) throw new Error("this page cannot look into its model; cutaway serve may");
  if (asked.interventions?.length) throw new Error("interventions: this page cannot do that; cutaway serve can");
  const { core } = loop, ids = [...asked.prompt, ...asked.generated.slice(0, asked.step)];
  if (await loop.read(ids, signal) < 0) return null;
  core.tap(/** @type {number} */ (ids.at(-1)), ids.length - 1);
  const own = core.draw({ chain: GREEDY, ...PLAIN, position: ids.length });
  const row = own.logits_hash.toString(16).padStart(16, "0");
  if (asked.row !== null && row !== asked.row) {
    throw new Error(`row: this model gives other logits than ${asked.row} at step ${asked.step}; they are of another model, or the tokens are others`);
  }
  const chosen = /** @type {number} */ (asked.generated[asked.step]);
  const rival = asked.rival ?? own.candidates.map(({ id }) => id).find((id) => id !== chosen) ?? 0;
  if (rival === chosen) throw new Error("rival: this is the token of the step; name another");
  const look = new Look(core, anatomy, ids), attributed = look.attribution(chosen, rival);
  const stream = anatomy.stream.map((tensor) => core.read(tensor)); // before the lens: it has no tap
  const lens = lensOf(loop, stream, asked, ids.length, row);
  return safetensors(arraysOf(look, attributed, lens), {
    cutaway: loop.about.head.cutaway, trace: "", model: loop.about.head.model, step: String(asked.step), row,
    as_run: JSON.stringify(asked.row === null ? null : true), token: String(chosen), rival: String(rival),
    parts: anatomy.parts.map(({ name }) => name).join(","),
    rounding: String(attributed.rounding), bias: String(attributed.bias), total: String(attributed.total),
    kv_bytes: String(ids.length * loop.about.head.kv_bytes_per_token),
    sinks: String(look.weights.reduce((sum, of) => sum + look.heads((head) => (of[head * look.n] ?? 0) > SINK).filter(Boolean).length, 0)),
    lens_first: JSON.stringify(index(lens.rank.indexOf(1))), lens_settled: JSON.stringify(settled([...lens.rank], (rank) => rank === 1)),
    draw_settled: JSON.stringify(lens.drawn && settled([...lens.drawn], (id) => id === lens.drawn?.at(-1))), experts: "{}",
    names: JSON.stringify(Object.fromEntries([chosen, rival, ...lens.ids, ...(lens.drawn ?? [])].map((id) => [id, loop.tokenizer.name(id)]))),
  });
}

/** Settings that change no draw. */
const OF_NO_DRAW = ["forced", "candidates", "logprobs", "prompt_logprobs", "ledger", "speculate", "kv_cache", "cache_prompt", "priority"];
/** @type {import("./core.js").Chain} */
const GREEDY = { greedy: true, stages: [], history: false, prompt: [] };
const PLAIN = { seed: 0n, output: [], candidates: 2, tracked: [] };

/** A row's tensors, with the attention weights and values of each layer. */
class Look {
  /** @param {Core} core @param {Anatomy} anatomy @param {number[]} ids of the text up to the row's token */
  constructor(core, anatomy, ids) {
    this.core = core;
    this.anatomy = anatomy;
    this.ids = ids;
    this.n = ids.length;
    const stored = (/** @type {Attention & {layer: number}} */ of, /** @type {boolean} */ values) =>
      gathered((block, count) => core.stored(of.layer, block, values, count), of, values, this.n);
    this.values = anatomy.attends.map((of) => stored(of, true));
    this.weights = anatomy.attends.map((of) => attentionWeights(of, core.read(of.query), stored(of, false), this.n));
    this.check();
  }

  /** @template T @param {(head: number) => T} each @returns {T[]} */
  heads(each) {
    return Array.from({ length: this.anatomy.attends[0]?.heads ?? 0 }, (_, head) => each(head));
  }

  /** An error unless the weights give the heads' outputs. */
  check() {
    this.anatomy.attends.forEach((of, layer) => {
      const weights = /** @type {Float64Array} */ (this.weights[layer]), values = /** @type {Float32Array} */ (this.values[layer]);
      const out = this.core.read(of.out), most = values.reduce((top, value) => Math.max(top, Math.abs(value)), 1e-30);
      for (let at = 0; at < out.length; at++) {
        const head = Math.floor(at / of.head_dim), from = Math.floor((head * of.kv_heads) / of.heads) * this.n * of.head_dim + (at % of.head_dim);
        let mixed = 0;
        for (let i = 0; i < this.n; i++) mixed += (weights[head * this.n + i] ?? 0) * (values[from + i * of.head_dim] ?? 0);
        near(mixed, out[at] ?? 0, NEAR_MIXED * most, `the heads' outputs of layer ${layer}`);
      }
    });
  }

  /** @param {number} token @param {number} rival what part, head and position add to the difference of their logits */
  attribution(token, rival) {
    const { core, anatomy: { norm, normed, head, parts: all } } = this, hidden = normed[1];
    const [first, second] = [token, rival].map((id) => Float64Array.from(core.decode(head.matrix, id, id + 1, hidden)));
    if (!first || !second) throw new Error("a token has no row in the head");
    const difference = first.map((value, i) => value - (second[i] ?? 0)), read = core.read(normed);
    let terms = size(first, read) + size(second, read);
    const stream = beforeNorm(norm, core.read(norm.input), {
      along: difference, constant: head.bias ? (head.bias[token] ?? 0) - (head.bias[rival] ?? 0) : 0,
      rounding: head.is_float ? 0 : dot(difference, rounding(core.read(head.input))),
    });
    const parts = [], rounded = new Float64Array(this.weights.length);
    /** @type {Float64Array[]} */
    const heads = this.weights.map(() => new Float64Array());
    const positions = [...heads];
    for (const part of all) {
      const given = core.read(part.given), here = times(stream.along, part.factor);
      parts.push(dot(here, given));
      terms += size(here, given);
      if (part.layer === null) continue;
      const layer = part.layer, found = this.headsOf(part, { along: here, constant: 0, rounding: 0 }, given);
      [heads[layer], positions[layer], rounded[layer]] = [found.heads, found.positions, found.rounding];
    }
    const logits = core.read(head.out), total = (logits[token] ?? 0) - (logits[rival] ?? 0);
    near(sum(Float64Array.from(parts)) + stream.constant + stream.rounding, total, NEAR * terms, "the parts");
    return { parts, heads, positions, rounded, bias: stream.constant, rounding: stream.rounding, total };
  }

  /** @param {Part} part @param {Direction} here @param {Float32Array} given */
  headsOf(part, here, given) {
    const layer = /** @type {number} */ (part.layer), of = /** @type {Attention & {out: Tensor}} */ (this.anatomy.attends[layer]);
    const after = part.path.reduce((direction, op) => this.before(op, direction), here), out = this.core.read(of.out);
    const heads = Float64Array.from(this.heads((head) => {
      const [from, to] = [head * of.head_dim, (head + 1) * of.head_dim];
      return dot(after.along.subarray(from, to), out.subarray(from, to));
    }));
    const positions = attentionAlong(of, /** @type {Float64Array} */ (this.weights[layer]), /** @type {Float32Array} */ (this.values[layer]), after.along, this.n);
    const terms = size(after.along, out) + size(here.along, given), whole = sum(heads);
    near(whole + after.constant + after.rounding, dot(here.along, given), NEAR * terms, `the heads of ${part.name}`);
    near(sum(positions), whole, NEAR_POSITIONS * terms, `the positions of ${part.name}`);
    return { heads, positions, rounding: after.rounding };
  }

  /** @param {any} op between the heads and the stream @param {Direction} after @returns {Direction} the same function of its input */
  before(op, after) {
    if (op.kind === "scale") return { ...after, along: times(after.along, op.factor) };
    const x = this.core.read(op.input);
    if (op.kind !== "linear") return beforeNorm(op, x, after);
    return beforeMatrix(this.core.decode(op.matrix, 0, op.rows, op.input[1]), op.bias, op.is_float ? null : rounding(x), after);
  }
}

/**
 * What the head makes of the stream before the first layer and after each, and what the same luck draws.
 * @param {Loop} loop @param {Float32Array[]} stream @param {Asked} asked @param {number} position @param {string} row
 */
function lensOf(loop, stream, { prompt, generated, step, settings, drawn: own }, position, row) {
  const { core } = loop;
  const params = { ...loop.about.defaults, ...Object.fromEntries(Object.entries(settings).filter(([name]) => !OF_NO_DRAW.includes(name))) };
  let chain = null;
  try {
    loop.check(params);
    chain = loop.chain(params, prompt);
  } catch { /* the run had what a page cannot repeat: a grammar, a check */ }
  core.head(stream);
  const found = stream.map((_, i) => {
    core.choose(i);
    return core.draw({
      ...PLAIN, chain: chain ?? GREEDY, seed: BigInt(settings.seed ?? 0), position, output: generated.slice(0, step), forced: generated[step],
    });
  });
  if (found.at(-1)?.logits_hash.toString(16).padStart(16, "0") !== row) throw new Error("the last layer's lens is not the row: this is a bug in cutaway");
  return {
    ids: Int32Array.from(found, ({ candidates }) => candidates[0]?.id ?? 0),
    logprobs: Float32Array.from(found, ({ candidates, log_sum_exp }) => (candidates[0]?.logit ?? 0) - log_sum_exp),
    rank: Int32Array.from(found, ({ rank }) => rank),
    drawn: chain === null || found.at(-1)?.sampled_id !== own ? null : Int32Array.from(found, ({ sampled_id }) => sampled_id),
  };
}

/**
 * @param {Look} look @param {ReturnType<Look["attribution"]>} found @param {ReturnType<typeof lensOf>} lens
 * @returns {[string, import("./safetensors.js").Numbers, number[]][]} as lab/inside/page_arrays.py has them
 */
function arraysOf(look, found, lens) {
  const { n, ids, weights } = look, layers = weights.length, heads = look.heads((head) => head), count = layers * heads.length;
  const rows = (/** @type {Float64Array[]} */ of) => of.flatMap((layer) => heads.map((head) => layer.subarray(head * n, (head + 1) * n)));
  const byWeight = rows(weights), byAttribution = rows(found.positions), each = found.heads.flatMap((layer) => [...layer]);
  const figures = byWeight.map((row, i) => headFigures(row, each[i] ?? 0, ids));
  const sums = (/** @type {Float64Array[]} */ of) => Array.from({ length: n }, (_, i) => of.reduce((all, row) => all + (row[i] ?? 0), 0));
  const most = (/** @type {string} */ name, /** @type {(value: number) => number} */ by, /** @type {Float64Array[]} */ order) => {
    const at = order.map((row) => largest(row, by)), shape = [layers, heads.length, Math.min(MOST, n)];
    const taken = (/** @type {Float64Array[]} */ of) => Float32Array.from(at.flatMap((places, i) => places.map((place) => of[i]?.[place] ?? 0)));
    return /** @type {[string, import("./safetensors.js").Numbers, number[]][]} */ ([
      [`${name}.positions`, Int32Array.from(at.flat()), shape], [`${name}.weights`, taken(byWeight), shape],
      [`${name}.attributions`, taken(byAttribution), shape]]);
  };
  return [
    ["places", Float32Array.from([...sums(byWeight).map((all) => all / count), ...sums(byAttribution)]), [2, n]],
    ["heads", Float32Array.from(Array.from({ length: 8 }, (_, k) => figures.map((of) => of[k] ?? 0)).flat()), [8, layers, heads.length]],
    ...most("looked", (value) => value, byWeight), ...most("attributed", Math.abs, byAttribution),
    ["parts", Float32Array.from(found.parts), [found.parts.length]], ["rounded", Float32Array.from(found.rounded), [layers]],
    ["first_seen", new Int32Array(layers), [layers]], ["token_ids", Int32Array.from(ids), [n]],
    ["lens.ids", lens.ids, [layers + 1]], ["lens.logprobs", lens.logprobs, [layers + 1]], ["lens.rank", lens.rank, [layers + 1]],
    ...(lens.drawn ? [/** @type {[string, Int32Array, number[]]} */ (["lens.drawn", lens.drawn, [layers + 1]])] : []),
    ["maps.weights", Uint8Array.from(byWeight.flatMap((row) => [...row].map((weight) => Math.round(Math.sqrt(weight) * SCALE)))), [layers, heads.length, n]],
  ];
}

/** @param {Float64Array} row @param {(value: number) => number} by @returns {number[]} where it has most; of equals the first */
const largest = (row, by) => [...row.keys()].sort((a, b) => by(row[b] ?? 0) - by(row[a] ?? 0) || a - b).slice(0, MOST);

/**
 * @param {Float64Array} weights @param {number} attribution @param {number[]} ids
 * @returns {number[]} attribution, sink, previous, same, induction, entropy, most, weight (lab/inside/summary.py)
 */
function headFigures(weights, attribution, ids) {
  const n = ids.length, [most = 0] = largest(weights, (value) => value);
  let same = 0, induction = 0, entropy = 0;
  for (let i = 0; i < n; i++) {
    const weight = weights[i] ?? 0;
    if (weight > 0) entropy -= weight * Math.log(weight);
    if (i < n - 1 && ids[i] === ids[n - 1]) same += weight;
    if (i < n - 1 && i > 0 && ids[i - 1] === ids[n - 1]) induction += weight;
  }
  return [attribution, weights[0] ?? 0, n > 1 ? weights[n - 2] ?? 0 : 0, same, induction, n > 1 ? entropy / Math.log(n) : 0, most, weights[most] ?? 0];
}

/** @param {number} found @returns {number | null} */
const index = (found) => (found < 0 ? null : found);

/** @template T @param {T[]} all @param {(one: T) => boolean} holds @returns {number | null} from where on it holds */
function settled(all, holds) {
  const start = all.findLastIndex((one) => !holds(one)) + 1;
  return start < all.length ? start : null;
}

/** @param {number} found @param {number} expected @param {number} bound @param {string} what */
function near(found, expected, bound, what) {
  if (!(Math.abs(found - expected) <= bound)) throw new Error(`${what} add up to ${found.toFixed(6)} and not to ${expected.toFixed(6)}: this is a bug in cutaway`);
}
