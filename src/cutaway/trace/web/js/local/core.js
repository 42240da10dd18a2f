/**
 * The compiled core (native/web/core.cpp): logits of one text, and draws from them.
 *
 * Knows how numbers get in and out; not what tokens mean, nor where the files come from.
 */

/**
 * @typedef {{context: number, matrices: [string, number, number, number][], calls: unknown[][], bytes: number}} Plan
 * A plan as Python recorded it (backends/cpu/recorded.py), and how many bytes its packed weights have.
 *
 * @typedef {{vocabulary: () => number, take: (bytes: number) => number, give_back: (at: number) => void,
 *   weights: (bytes: number) => number, build: (numbers: number, count: number) => number,
 *   run: (tokens: number, count: number, first: number) => number, chain: (numbers: number, count: number) => number,
 *   draw: (logits: number, numbers: number, count: number) => number, answered: () => number,
 *   _initialize: () => void, memory: WebAssembly.Memory}} Exports
 *
 * @typedef {{id: number, logit: number, rank: number, delta: number, removed_by: number | null,
 *   final_logprob: number | null, luck: number | null}} Candidate
 *
 * @typedef {{token_id: number, sampled_id: number, survivors: number, logits_hash: bigint, maximum: number,
 *   log_sum_exp: number, entropy: number, rank: number, logprob: number, final_rank: number | null,
 *   final_logprob: number | null, final_log_sum_exp: number, candidates: Candidate[],
 *   stages: {survivors: number, removed_mass: number, log_sum_exp: number, min_kept_logit: number | null,
 *     top_removed: number[]}[], logit_histogram: number[]}} Drawn
 *
 * @typedef {{chain: number, seed: bigint, position: number, output: number[], candidates: number, tracked: number[],
 *   forced?: number}} Draw
 */

const STATUS = ["", "the logits are not finite", "a stage carries the logits beyond what the core computes", "no token is left"];

export class Core {
  /**
   * @param {WebAssembly.Module} module
   * @param {Plan} plan
   * @param {(to: Uint8Array) => Promise<void>} fill writes the packed weights
   */
  static async load(module, plan, fill) {
    /** @type {Core} */
    const core = new Core(await WebAssembly.instantiate(module, imports(() => core.memory)));
    const at = core.exports.weights(plan.bytes);
    await fill(new Uint8Array(core.memory.buffer, at, plan.bytes));
    core.give([plan.context, plan.matrices, plan.calls], (numbers, count) => core.exports.build(numbers, count));
    core.context = plan.context;
    return core;
  }

  /** @param {WebAssembly.Instance} instance */
  constructor(instance) {
    this.exports = /** @type {Exports} */ (/** @type {unknown} */ (instance.exports));
    this.memory = this.exports.memory;
    this.context = this.logits = 0;
    this.exports._initialize();
  }

  get vocabulary() {
    return this.exports.vocabulary();
  }

  /**
   * The last token's logits are kept for `draw`.
   * @param {number[]} tokens
   * @param {number} first the position of the first
   */
  run(tokens, first) {
    const at = this.exports.take(4 * tokens.length);
    new Int32Array(this.memory.buffer, at, tokens.length).set(tokens);
    this.logits = this.exports.run(at, tokens.length, first);
    this.exports.give_back(at);
  }

  /**
   * The number of a chain: see native/sampler.h.
   * @param {{greedy: boolean, stages: [string, number[], [number, number][], number[]][], history: boolean, prompt: number[]}} chain
   */
  chain({ greedy, stages, history, prompt }) {
    return this.give([greedy, stages, history, prompt], (numbers, count) => this.exports.chain(numbers, count));
  }

  /** @param {Draw} draw @returns {Drawn} */
  draw({ chain, seed, position, output, candidates, tracked, forced }) {
    const asked = [chain, Number(seed >> 32n), Number(seed & 0xffffffffn), 0, position, output, candidates, tracked];
    const at = this.give([...asked, forced === undefined ? [] : [forced]], (numbers, count) => this.exports.draw(this.logits, numbers, count));
    return drawn(new Float64Array(this.memory.buffer, at, this.exports.answered()));
  }

  /**
   * @param {unknown[]} values
   * @param {(numbers: number, count: number) => number} use
   */
  give(values, use) {
    /** @type {number[]} */
    const flat = [];
    for (const value of values) flatten(value, flat);
    const at = this.exports.take(8 * flat.length);
    new Float64Array(this.memory.buffer, at, flat.length).set(flat);
    const result = use(at, flat.length);
    this.exports.give_back(at);
    return result;
  }
}

/**
 * Numbers alone, as native/web/numbers.h reads them.
 * @param {unknown} value
 * @param {number[]} into
 */
function flatten(value, into) {
  if (Array.isArray(value)) {
    into.push(value.length);
    for (const item of value) flatten(item, into);
  } else if (typeof value === "string") {
    into.push(value.length);
    for (const letter of value) into.push(letter.charCodeAt(0));
  } else {
    into.push(Number(value));
  }
}

/** @param {Float64Array} numbers @returns {Drawn} */
function drawn(numbers) {
  let at = 0;
  const next = () => /** @type {number} */ (numbers[at++]);
  const maybe = () => {
    const value = next();
    return Number.isNaN(value) ? null : value;
  };
  const list = (/** @type {() => any} */ each) => Array.from({ length: next() }, each);
  const status = next();
  if (status) throw new Error(STATUS[status]);
  const [token_id, sampled_id, survivors] = [next(), next(), next()];
  const logits_hash = (BigInt(next()) << 32n) | BigInt(next());
  const [maximum, log_sum_exp, entropy, rank, logprob] = [next(), next(), next(), next(), next()];
  const [final_rank, final_logprob, final_log_sum_exp] = [maybe(), maybe(), next()];
  const candidates = list(() => ({
    id: next(), logit: next(), rank: next(), delta: next(), removed_by: maybe(), final_logprob: maybe(), luck: maybe(),
  }));
  const stages = list(() => ({
    survivors: next(), removed_mass: next(), log_sum_exp: next(), min_kept_logit: maybe(), top_removed: list(next),
  }));
  const logit_histogram = list(next);
  return {
    token_id, sampled_id, survivors, logits_hash, maximum, log_sum_exp, entropy, rank, logprob, final_rank, final_logprob,
    final_log_sum_exp, candidates, stages, logit_histogram,
  };
}

/**
 * What the core asks of its host: to stop with a sentence, and the time. It opens no files.
 * @param {() => WebAssembly.Memory} memory
 */
function imports(memory) {
  const system = {
    clock_time_get: (/** @type {number} */ _clock, /** @type {bigint} */ _precision, /** @type {number} */ at) => {
      new DataView(memory().buffer).setBigUint64(at, BigInt(Math.round(performance.now() * 1e6)), true);
      return 0;
    },
  };
  const none = (/** @type {string} */ name) => () => {
    throw new Error(`the core asked its host for ${name}, which it does not need`);
  };
  return {
    cutaway: {
      refuse: (/** @type {number} */ at, /** @type {number} */ bytes) => {
        throw new Error(new TextDecoder().decode(new Uint8Array(memory().buffer, at, bytes)));
      },
    },
    wasi_snapshot_preview1: new Proxy(system, { get: (known, name) => known[/** @type {"clock_time_get"} */ (name)] ?? none(String(name)) }),
  };
}
