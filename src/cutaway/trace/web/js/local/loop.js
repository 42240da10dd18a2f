/**
 * The loop over one text: run, draw, append, until it ends; each token as the records of a trace (docs/trace.md).
 *
 * Knows a request's settings and the records' order; not the page, and not how logits are computed.
 */

import { chatIds } from "./chat.js";
import { GpuError } from "./gpu/model.js";
import { checkPrompt, readSettings } from "./settings.js";
import { StoppedText } from "./stops.js";

/**
 * @typedef {import("./core.js").Core} Core
 * @typedef {import("./core.js").Drawn} Drawn
 * @typedef {import("./reader.js").Reader} Reader
 * @typedef {import("./tokenizer.js").Tokenizer} Tokenizer
 * @typedef {Record<string, any>} Json
 *
 * @typedef {import("../figures/catalogue.js").StageEntry} StageEntry
 * @typedef {{head: Json, defaults: Json, settings: import("./settings.js").Rows, end_ids: number[], stages: StageEntry[],
 *   presets: Record<string, string[]>, chat: import("./chat.js").ChatPieces | null}} About
 * head: the fields that all traces of the model share; defaults: every setting; stages, presets: see figures/catalogue.js
 *
 * @typedef {{prompt: string | number[], messages: import("./chat.js").Message[] | null, settings: Json, seed: string | null,
 *   forced: number[]}} Asked
 * messages: a conversation, which is answered in the place of a prompt
 *
 * @typedef {{ids: number[], forced: number[], params: Json, limit: number, chain: import("./core.js").Chain}} Plan
 * ids: the prompt; limit: the most tokens after it
 */

export class Loop {
  /**
   * @param {Core} core that draws
   * @param {Reader} reader
   * @param {Tokenizer} tokenizer
   * @param {About} about
   * @param {Json} [computed] what a trace says of how it was: backend, tier, threads
   * @param {number} [context] the most tokens of a text
   */
  constructor(core, reader, tokenizer, about, computed = {}, context = 0) {
    this.computed = computed;
    this.core = core;
    this.reader = reader;
    this.tokenizer = tokenizer;
    this.about = about;
    this.context = context;
    /** @type {(reason: string, isDeclined?: boolean) => Promise<void>} put a reader of the core in the place of the GPU's */
    this.fallBack = () => Promise.reject(new Error("there is nothing else to compute with"));
    /** @type {() => Promise<Loop>} the core's, for texts that are longer than the reader's */
    this.onCore = () => Promise.reject(new Error("there is nothing else to compute with"));
  }

  /**
   * Compute what is yet to be computed of a text; where the GPU fails, or was not checked for so long a text, the core computes it all.
   * @param {number[]} ids @param {boolean} forgets whether nothing is kept of steps before @param {AbortSignal} [signal] @returns {Promise<number>} how many tokens were cached; -1: it was stopped
   */
  async read(ids, forgets, signal) {
    if (ids.length > this.reader.longest) return (await this.onCore()).read(ids, forgets, signal);
    if (forgets) this.reader.cachedIds = [];
    try {
      return await this.reader.read(ids, signal);
    } catch (error) {
      if (!(error instanceof GpuError)) throw error;
      await this.fallBack(error.message, true);
      return this.reader.read(ids, signal);
    }
  }

  /**
   * @param {Asked} request
   * @param {AbortSignal} [signal]
   * @returns {AsyncGenerator<Json[]>}
   */
  async *records(request, signal) {
    const plan = this.plan(request), { ids, params, limit } = plan;
    if (ids.length > this.reader.longest) return yield* (await this.onCore()).records(request, signal);
    if (!params.cache_prompt) this.reader.cachedIds = [];
    const head = this.head(request, plan), recorded = new Set();
    yield [head, ...this.newTokens([...ids, ...head.tracked_ids, ...head.end_ids], recorded)];

    const text = new StoppedText(params.stop), endings = endingsOf(params, this.about), output = /** @type {number[]} */ ([]);
    let reason = limit === params.max_tokens ? "max_tokens" : "context_full", match = /** @type {string | number | null} */ (null);
    let fingerprint = START, cached = 0;
    while (output.length < limit && match === null) {
      const started = performance.now();
      const count = await this.read([...ids, ...output], !params.kv_cache, signal);
      if (count < 0) return;
      if (!output.length) cached = count;
      const ran = performance.now();
      const draw = this.draw(plan, head.tracked_ids, output);
      fingerprint = chainHash(fingerprint, draw.logits_hash);
      const ends = endings.get(draw.token_id);
      const step = recordOf(draw, plan, { index: output.length, fingerprint, text: ends ? "" : text.push(this.tokenizer.bytes(draw.token_id)),
        ms: { schedule: 0, run: ms(ran - started), sample: ms(performance.now() - ran) } });
      output.push(draw.token_id);
      yield [...this.newTokens(namedIds(draw), recorded), step];
      if (ends) [reason, match] = [ends, draw.token_id];
      else if (text.match !== null) [reason, match] = ["stop_string", text.match];
    }
    yield [{
      kind: "end", reason, matched: match, usage: { prompt_tokens: ids.length, cached_tokens: cached, completion_tokens: output.length },
      fingerprint: hexadecimal(fingerprint), text: text.end(), error: null, speculation: { proposed: 0, accepted: 0 },
    }];
  }

  /** @param {Asked} request @returns {Plan} a request that was checked */
  plan({ prompt, messages, settings: { forced: before = [], ...settings }, seed, forced: requestIds }) {
    const ids = messages ? chatIds(messages, this.about.chat, this.tokenizer)
      : typeof prompt === "string" ? this.tokenizer.encode(prompt) : prompt;
    const forced = requestIds.length ? requestIds : before; // as a server takes the two, from addresses of earlier pages
    const params = readSettings(seed === null ? settings : { ...settings, seed }, this.about, this.tokenizer);
    checkPrompt(ids, forced, params, this.tokenizer);
    const limit = Math.min(params.max_tokens, this.context - ids.length);
    if (limit < 1) throw new Error(`the prompt has ${ids.length} tokens, and the page's context ${this.context}: shorten it`);
    return { ids, forced, params, limit, chain: this.chain(params, ids) };
  }

  /** @param {Asked} request @param {Plan} plan @returns {Json} the first record */
  head({ prompt, messages }, { ids, forced, params }) {
    const seed = String(params.seed);
    return {
      ...this.about.head, ...this.computed, prompt: messages || typeof prompt !== "string" ? null : prompt,
      prompt_token_ids: ids, chain: chainOf(params, this.about).map(describeStage),
      candidates: params.candidates, params: { ...params, forced, seed }, seed,
      tracked_ids: [...new Set([...params.track, ...this.about.end_ids])], end_ids: this.about.end_ids,
    };
  }

  /** @param {Plan} plan @param {number[]} tracked @param {number[]} output so far @returns {Drawn} the next token */
  draw({ ids, forced, params, chain }, tracked, output) {
    return this.core.draw({ chain, seed: params.seed, position: ids.length + output.length, output,
      candidates: params.candidates, tracked, forced: forced[output.length] });
  }

  /** @param {Json} params @param {number[]} prompt @returns {import("./core.js").Chain} */
  chain(params, prompt) {
    const stages = chainOf(params, this.about);
    const history = stages.some(({ stage }) => this.about.stages.find(({ name }) => name === stage)?.history ?? false);
    return { greedy: params.temperature === 0, stages: stages.map(nativeStage), history, prompt: history ? prompt : [] };
  }

  /**
   * Return records of the tokens that have none yet, by id.
   * @param {number[]} ids
   * @param {Set<number>} recorded
   */
  newTokens(ids, recorded) {
    const fresh = [...new Set(ids)].filter((id) => !recorded.has(id)).sort((a, b) => a - b);
    for (const id of fresh) recorded.add(id);
    return fresh.map((id) => this.token(id));
  }

  /** @param {number} id @returns {Json} */
  token(id) {
    const name = this.tokenizer.vocabulary.names[id], bytes = this.tokenizer.bytes(id);
    try {
      const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
      return { kind: "tok", id, text, ...(name ? { name } : {}) };
    } catch {
      return { kind: "tok", id, hex: [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("") };
    }
  }
}

/**
 * Return the stages that the settings need, in their order, as src/cutaway/sampling/chain.py builds them.
 * @param {Json} params every setting
 * @param {{stages: StageEntry[], presets: Record<string, string[]>}} about
 * @returns {{stage: string, rule: Json}[]}
 */
export function chainOf(params, { stages, presets }) {
  /** @type {string[]} */
  const order = params.chain ?? presets[params.preset];
  return order.flatMap((name) => {
    const entry = stages.find((stage) => stage.name === name);
    if (!entry || !entry.switches.some((setting) => isOn(entry, setting, params[setting]))) return [];
    if (params.temperature === 0 && !entry.at_zero) return [];
    return [{ stage: name, rule: Object.fromEntries(Object.entries(entry.rule).map(([key, setting]) => [key, params[setting]])) }];
  });
}

/** @param {StageEntry} entry @param {string} name @param {any} value */
function isOn(entry, name, value) {
  const param = entry.params.find((parameter) => parameter.name === name);
  return param ? value !== param.off : Object.keys(value ?? {}).length > 0;
}

/**
 * Return a stage as the core reads it: its numbers, its biases by token id, and its ids.
 * @param {{stage: string, rule: Json}} of @returns {[string, number[], [number, number][], number[]]}
 */
function nativeStage({ stage, rule }) {
  const values = Object.values(rule);
  const bias = values.filter((value) => typeof value === "object" && !Array.isArray(value)).flatMap((by) => Object.entries(by));
  return [stage, values.filter((value) => typeof value === "number"), bias.map(([id, by]) => [Number(id), by]), values.filter(Array.isArray).flat()];
}

/** @param {{stage: string, rule: Json}} of @returns {Json} a stage in a trace's head, which has no lists of ids */
const describeStage = ({ stage, rule }) =>
  ({ stage, ...Object.fromEntries(Object.entries(rule).filter(([, value]) => !Array.isArray(value))) });

/** @param {Json} params @param {About} about @returns {Map<number, string>} the reason for an end, by the token that is one */
const endingsOf = (params, about) => new Map([
  ...(params.ignore_eos ? [] : about.end_ids.map((id) => /** @type {[number, string]} */ ([id, "end_token"]))),
  ...params.stop_token_ids.map((/** @type {number} */ id) => [id, "stop_token"]),
]);

/**
 * Return a step's line.
 * @param {Drawn} draw
 * @param {Plan} plan
 * @param {{index: number, fingerprint: bigint, text: string, ms: Record<string, number>}} rest
 * @returns {Json}
 */
function recordOf(draw, { ids, forced, params }, { index, fingerprint, text, ms }) {
  const isGreedy = params.temperature === 0, position = ids.length + index;
  return {
    kind: "step", index, position, token_id: draw.token_id, sampled_id: draw.sampled_id,
    source: index < forced.length ? "forced" : isGreedy ? "greedy" : "sampled", text,
    ...figures(draw, isGreedy), kv_tokens: position, ms,
    logits_hash: hexadecimal(draw.logits_hash), fingerprint: hexadecimal(fingerprint),
  };
}

/** @param {Drawn} draw */
function namedIds(draw) {
  return [draw.sampled_id, ...draw.candidates.map(({ id }) => id), ...draw.stages.flatMap((stage) => stage.top_removed)];
}

/**
 * Return what a step's line says of the draw: candidates as columns, logits with nine digits (trace/steps.py).
 * @param {Drawn} draw
 * @param {boolean} isGreedy
 */
function figures(draw, isGreedy) {
  const column = (/** @type {keyof import("./core.js").Candidate} */ name) => draw.candidates.map((candidate) => candidate[name]);
  return {
    candidates: {
      id: column("id"), logit: draw.candidates.map(({ logit }) => short(logit)), rank: column("rank"),
      delta: draw.candidates.map(({ delta }) => short(delta)), removed_by: column("removed_by"),
      final_logprob: column("final_logprob"), luck: isGreedy ? draw.candidates.map(() => null) : column("luck"),
    },
    maximum: short(draw.maximum), log_sum_exp: draw.log_sum_exp, entropy: draw.entropy, rank: draw.rank,
    logprob: draw.logprob, final_rank: draw.final_rank, final_logprob: draw.final_logprob,
    final_log_sum_exp: draw.final_log_sum_exp,
    stages: draw.stages.map((stage) => ({ ...stage, min_kept_logit: stage.min_kept_logit === null ? null : short(stage.min_kept_logit) })),
    logit_histogram: draw.logit_histogram,
  };
}

const START = 0xc07a0a1dn, GOLDEN = 0x9e3779b97f4a7c15n, MIX = 0xd6e8feb86659fd93n;

/**
 * Return the fingerprint after one more row, as in sampling/observe.py.
 * @param {bigint} soFar
 * @param {bigint} row
 */
function chainHash(soFar, row) {
  const mixed = BigInt.asUintN(64, (soFar ^ row) * MIX);
  return BigInt.asUintN(64, (mixed ^ (mixed >> 29n)) * GOLDEN);
}

/** @param {bigint} word */
const hexadecimal = (word) => word.toString(16).padStart(16, "0");
/** @param {number} value */
const short = (value) => Number(value.toPrecision(9));
/** @param {number} value */
const ms = (value) => Math.round(value * 1e4) / 1e4;
