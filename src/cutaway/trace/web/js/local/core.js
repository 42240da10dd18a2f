/**
 * The compiled core (native/web/core.cpp): logits of one text, and draws from them.
 *
 * Knows how numbers get in and out; not what tokens mean, nor where the files come from.
 */

/**
 * @typedef {{context: number, matrices: [string, number, number, number][], calls: unknown[][], tap: unknown[][],
 *   head: unknown[][], bytes: number}} Plan
 * Plans as Python wrote them (features/page/plan.py), and how many bytes their packed weights have.
 *
 * @typedef {{vocabulary: () => number, allocate: (bytes: number) => number, release: (at: number) => void,
 *   weights: (bytes: number) => number, build: (numbers: number, count: number) => void,
 *   run: (plan: number, tokens: number, count: number, first: number) => number,
 *   run_on: (plan: number, numbers: number, rows: number) => number, read: (plan: number, buffer: number, width: number, out: number) => void,
 *   decode: (matrix: number, first: number, last: number, out: number) => void,
 *   stored: (layer: number, window: number, block: number, values: boolean, kv_heads: number, head_dim: number, out: number) => void,
 *   round_activations: (numbers: number, count: number) => void, has_states: () => number, state: (block: number) => number,
 *   rotation: (numbers: number, count: number) => number, angles: (rotation: number, first: number, rows: number, out: number) => number,
 *   draw: (logits: number, vocabulary: number, numbers: number, count: number) => number, result_length: () => number,
 *   _initialize: () => void, memory?: WebAssembly.Memory, __stack_pointer: WebAssembly.Global, work: (id: number) => void,
 *   __wasm_init_tls: (at: number) => void, __tls_size: WebAssembly.Global, __tls_align: WebAssembly.Global}} Exports
 * Only cores with threads have the last three; they get their memory from outside.
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
 * @typedef {{greedy: boolean, stages: [string, number[], [number, number][], number[]][], history: boolean, prompt: number[]}} Chain
 * See native/sampler.h; prompt is empty unless a stage looks at the history.
 *
 * @typedef {{chain: Chain, seed: bigint, position: number, output: number[], candidates: number, tracked: number[],
 *   forced?: number}} Draw
 */

const STATUS = ["", "the logits are not finite", "a stage carries the logits beyond what the core computes", "no token is left"];

const [TEXT, TAP, HEAD] = [0, 1, 2]; // plans
export const KV_BLOCK = 32; // tokens
export const MOST_BYTES = 2 ** 32; // bytes that 32 bits can name
const NO_MEMORY = "the browser has not enough memory for this model: close other tabs, or open it where there is a GPU";

export class Core {
  /**
   * A core that draws; after `build` it also runs a model.
   * @param {WebAssembly.Module} module @param {WebAssembly.Memory} [memory] that its threads share
   */
  static async open(module, memory) {
    /** @type {Core} */
    const core = new Core(await WebAssembly.instantiate(module, imports(() => core.memory, memory)), memory);
    return core;
  }

  /** @param {WebAssembly.Instance} instance @param {WebAssembly.Memory} [memory] */
  constructor(instance, memory) {
    this.exports = /** @type {Exports} */ (/** @type {unknown} */ (instance.exports));
    this.memory = /** @type {WebAssembly.Memory} */ (memory ?? this.exports.memory);
    this.vocabulary = 0; // how many logits a row has
    this.logits = this.first = 0;
    /** Where logits lie that were computed elsewhere. */
    this.received = 0;
    this.hasStates = false; // true: a text can only be continued from its last token
    this.exports._initialize();
  }

  /**
   * @param {Plan} plan @param {(to: Uint8Array) => Promise<void>} fill writes the packed weights
   * @param {number} threads how many compute: all but this one must then call `work`
   */
  async build(plan, fill, threads = 1) {
    if (plan.bytes >= MOST_BYTES) {
      throw new Error(`the model's weights have ${(plan.bytes / 1e9).toFixed(1)} GB, and without a GPU a page can hold 4: open it where there is a GPU`);
    }
    const at = this.call(() => this.exports.weights(plan.bytes));
    await fill(new Uint8Array(this.memory.buffer, at, plan.bytes));
    const plans = [plan.calls, plan.tap, plan.head];
    this.give([plan.context, threads, plan.matrices, plans], (numbers, count) => this.exports.build(numbers, count) ?? 0);
    this.vocabulary = this.exports.vocabulary();
    this.hasStates = Boolean(this.exports.has_states());
  }

  /** @param {Float32Array} logits of a row, which `draw` then draws from */
  receive(logits) {
    this.vocabulary = logits.length;
    this.received ||= this.call(() => this.exports.allocate(4 * this.vocabulary));
    new Float32Array(this.memory.buffer, this.received, this.vocabulary).set(logits);
    this.logits = this.received;
  }

  /** @param {unknown[][]} rotations @returns {import("./gpu/step.js").Angles} their cosines and sines */
  angles(rotations) {
    const numbers = rotations.map((rotation) => this.give([rotation], (at, count) => this.exports.rotation(at, count)));
    return (rotation, first, rows) => {
      const width = 2 * /** @type {any[][]} */ (rotations)[rotation]?.[0].length;
      return this.readFloats(rows * width, (at) => this.exports.angles(numbers[rotation] ?? 0, first, rows, at));
    };
  }

  /**
   * Run tokens through the model, and keep the last one's logits for `draw`.
   * @param {number[]} tokens
   * @param {number} first the position of the first
   * @param {number} plan
   */
  run(tokens, first, plan = TEXT) {
    this.logits = 0;
    this.logits = this.lend(4 * tokens.length, (at) => {
      new Int32Array(this.memory.buffer, at, tokens.length).set(tokens);
      return this.exports.run(plan, at, tokens.length, first);
    });
  }

  /**
   * Run one token, whose tensors `read` then returns.
   * @param {number} token @param {number} position
   */
  tap(token, position) {
    this.run([token], position, TAP);
  }

  /**
   * Compute the logits of rows of the stream; `draw` draws from the first, or from the row that `choose` names.
   * @param {Float32Array[]} rows
   */
  head(rows) {
    const width = rows[0]?.length ?? 0;
    this.first = this.logits = this.lend(4 * width * rows.length, (at) => {
      rows.forEach((row, i) => new Float32Array(this.memory.buffer, at + 4 * width * i, width).set(row));
      return this.exports.run_on(HEAD, at, rows.length);
    });
  }

  /** @param {number} row which of the rows of `head` to draw from */
  choose(row) {
    this.logits = this.first + 4 * this.vocabulary * row;
  }

  /** @param {[buffer: number, width: number]} tensor @returns {Float32Array} as `tap` left it */
  read([buffer, width]) {
    return this.readFloats(width, (at) => this.exports.read(TAP, buffer, width, at));
  }

  /** @param {number} matrix @param {number} first @param {number} last @param {number} columns @returns {Float32Array} its rows */
  decode(matrix, first, last, columns) {
    return this.readFloats((last - first) * columns, (at) => this.exports.decode(matrix, first, last, at));
  }

  /**
   * @param {{layer: number, window: number, kv_heads: number, head_dim: number, value_dim: number}} of @param {number} block
   * @param {boolean} values else keys @returns {Float32Array} (kv_heads, KV_BLOCK, their width)
   */
  readStored({ layer, window, kv_heads, head_dim, value_dim }, block, values) {
    const width = values ? value_dim : head_dim;
    return this.readFloats(kv_heads * KV_BLOCK * width, (at) => this.exports.stored(layer, window, block, values, kv_heads, width, at));
  }

  /** @param {Float32Array} x activations @returns {Float32Array} as a quantised matrix reads them */
  roundActivations(x) {
    return this.readFloats(x.length, (at) => {
      new Float32Array(this.memory.buffer, at, x.length).set(x);
      this.exports.round_activations(at, x.length);
    });
  }

  /** @param {number} tokens of the text @param {number} first @param {number} count @returns {Float32Array} numbers of its state, 0 before it begins */
  state(tokens, first, count) {
    if (!tokens) return new Float32Array(count);
    const at = this.call(() => this.exports.state(Math.floor((tokens - 1) / KV_BLOCK)));
    return new Float32Array(this.memory.buffer, at + 4 * first, count).slice();
  }

  /** @param {number} count of floats @param {(at: number) => void} fill @returns {Float32Array} */
  readFloats(count, fill) {
    const floats = new Float32Array(count);
    this.lend(4 * count, (at) => {
      fill(at);
      floats.set(new Float32Array(this.memory.buffer, at, count));
      return at;
    });
    return floats;
  }

  /** @param {Draw} draw @returns {Drawn} */
  draw({ chain, seed, position, output, candidates, tracked, forced }) {
    if (!this.logits) throw new Error("there are no logits to draw from: run the text first");
    const { greedy, stages, history, prompt } = chain;
    const values = [greedy, stages, history, prompt, Number(seed >> 32n), Number(seed & 0xffffffffn), 0, position, output, candidates, tracked];
    const at = this.give([...values, forced === undefined ? [] : [forced]], (numbers, count) => this.exports.draw(this.logits, this.vocabulary, numbers, count));
    return parseDraw(new Float64Array(this.memory.buffer, at, this.exports.result_length()));
  }

  /**
   * @param {unknown[]} values
   * @param {(numbers: number, count: number) => number} use
   */
  give(values, use) {
    /** @type {number[]} */
    const flat = [];
    for (const value of values) flatten(value, flat);
    return this.lend(8 * flat.length, (at) => {
      new Float64Array(this.memory.buffer, at, flat.length).set(flat);
      return use(at, flat.length);
    });
  }

  /**
   * Lend memory to `use`, and return what it returns.
   * @param {number} bytes
   * @param {(at: number) => number} use
   */
  lend(bytes, use) {
    const at = this.call(() => this.exports.allocate(bytes));
    try {
      return this.call(() => use(at));
    } finally {
      this.exports.release(at);
    }
  }

  /**
   * Call the core, and return its address or number. After a refusal its stack pointer is put back.
   * @param {() => number} use
   */
  call(use) {
    const stack = this.exports.__stack_pointer.value;
    try {
      return use() >>> 0; // addresses above 2 GB are negative numbers
    } catch (error) {
      this.exports.__stack_pointer.value = stack;
      throw error;
    }
  }
}

/**
 * Flatten a value into the numbers that native/numbers.h reads.
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
function parseDraw(numbers) {
  let at = 0;
  const next = () => /** @type {number} */ (numbers[at++]);
  const maybe = () => {
    const value = next();
    return Number.isNaN(value) ? null : value;
  };
  const list = (/** @type {() => any} */ readItem) => Array.from({ length: next() }, readItem);
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
 * Return what the core imports from its host: a function that throws its error, and a clock. It opens no files.
 * @param {() => WebAssembly.Memory} memory
 * @param {WebAssembly.Memory} [sharedMemory] to a core with threads
 */
export function imports(memory, sharedMemory) {
  const system = {
    clock_time_get: (/** @type {number} */ _clock, /** @type {bigint} */ _precision, /** @type {number} */ at) => {
      new DataView(memory().buffer).setBigUint64(at, BigInt(Math.round(performance.now() * 1e6)), true);
      return 0;
    },
  };
  /** @type {WebAssembly.ModuleImports} */
  const env = sharedMemory ? { memory: sharedMemory } : {};
  const none = (/** @type {string} */ name) => () => {
    throw new Error(`the core asked its host for ${name}, which it does not need`);
  };
  return {
    cutaway: {
      refuse: (/** @type {number} */ at, /** @type {number} */ bytes) => {
        const reason = new TextDecoder().decode(new Uint8Array(memory().buffer, at, bytes).slice());
        throw new Error(reason === "std::bad_alloc" ? NO_MEMORY : reason);
      },
    },
    env,
    wasi_snapshot_preview1: new Proxy(system, { get: (target, name) => target[/** @type {"clock_time_get"} */ (name)] ?? none(String(name)) }),
  };
}
