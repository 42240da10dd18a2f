/**
 * The loop over one text: run, draw, append, until it ends; each token as the records of a trace (docs/trace.md).
 *
 * Knows a request's settings and the records' order; not the page, and not how logits are computed.
 */

import { chatIds } from "./chat.js";
import { StoppedText } from "./stops.js";

/**
 * @typedef {import("./core.js").Core} Core
 * @typedef {import("./core.js").Drawn} Drawn
 * @typedef {import("./tokenizer.js").Tokenizer} Tokenizer
 * @typedef {Record<string, any>} Json
 *
 * @typedef {import("../figures/catalogue.js").StageEntry} StageEntry
 * @typedef {{head: Json, defaults: Json, end_ids: number[], stages: StageEntry[], presets: Record<string, string[]>,
 *   chat: import("./chat.js").ChatPieces | null}} About
 * head: what all traces of the model have in theirs; defaults: every setting; stages, presets: see figures/catalogue.js
 *
 * @typedef {{prompt: string | number[], messages: import("./chat.js").Message[] | null, settings: Json, seed: string | null,
 *   forced: number[]}} Asked
 * messages: a conversation, which is answered in the place of a prompt
 */

/** Settings beside those of the stages. */
const OWN = ["max_tokens", "stop", "stop_token_ids", "ignore_eos", "seed", "preset", "chain", "track", "cache_prompt"];
const CHUNK = 64;  // tokens of a prompt in one run, so that the page can stop between two
const PAUSE = 16;  // ms without a look at messages

export class Loop {
  /**
   * @param {Core} core
   * @param {Tokenizer} tokenizer
   * @param {About} about
   * @param {{tier: string, threads: number}} computed what a trace says of how it was
   */
  constructor(core, tokenizer, about, computed) {
    this.computed = computed;
    this.core = core;
    this.tokenizer = tokenizer;
    this.about = about;
    /** @type {number[]} the text whose keys and values the core has */
    this.known = [];
    this.paused = performance.now();
  }

  /**
   * Compute what the core has not of a text, so that its last token's logits can be drawn from.
   * @param {number[]} ids @param {AbortSignal} [signal] @param {number} again how many of the last tokens are computed in any case
   * @returns {Promise<number>} how many tokens were known; -1: it was stopped
   */
  async read(ids, signal, again = 1) {
    const same = this.known.findIndex((id, i) => id !== ids[i]);
    let known = Math.min(same < 0 ? this.known.length : same, ids.length - again);
    if (this.core.hasStates && known < this.known.length) known = 0; // the state is that after its last token
    for (let first = known; first < ids.length; first += CHUNK) {
      if (signal?.aborted) return -1;
      this.known = ids.slice(0, first);
      this.core.run(ids.slice(first, first + CHUNK), first);
      this.known = ids.slice(0, first + CHUNK);
      await this.pause();
    }
    this.known = ids;
    return known;
  }

  /** Lets messages in, one that stops the text among them; not at every token, since browsers make a timer wait 4 ms. */
  async pause() {
    if (performance.now() - this.paused < PAUSE) return;
    await nextTask();
    this.paused = performance.now();
  }

  /**
   * @param {Asked} asked
   * @param {AbortSignal} [signal]
   * @returns {AsyncGenerator<Json[]>}
   */
  async *records({ prompt, messages, settings, seed, forced }, signal) {
    const ids = messages ? chatIds(messages, this.about.chat, this.tokenizer)
      : typeof prompt === "string" ? this.tokenizer.encode(prompt) : prompt;
    const params = { ...this.about.defaults, ...settings };
    this.check(params);
    const most = Math.min(params.max_tokens ?? Infinity, this.core.context - ids.length);
    if (!ids.length) throw new Error("the prompt has no token: write something");
    if (params.max_tokens < 1) throw Object.assign(new Error("max_tokens must be 1 or more in this page"), { param: "max_tokens" });
    if (most < 1) throw new Error(`the prompt has ${ids.length} tokens, and the page's context ${this.core.context}: shorten it`);
    if (!params.cache_prompt) this.known = [];
    const drawSeed = seed === null ? randomSeed() : BigInt(seed);
    const stages = chainOf(params, this.about), isGreedy = params.temperature === 0;
    const chain = this.chain(params, ids);
    const tracked = params.track ?? this.about.end_ids;

    /** @type {Json} */
    const head = {
      ...this.about.head, ...this.computed, prompt: messages || typeof prompt !== "string" ? null : prompt,
      prompt_token_ids: ids, chain: stages.map(({ stage, rule }) => ({ stage, ...rule })),
      params: { ...params, forced, seed: String(drawSeed) }, seed: String(drawSeed), tracked_ids: tracked, end_ids: this.about.end_ids,
    };
    const written = new Set();
    yield [head, ...this.newTokens([...ids, ...tracked, ...this.about.end_ids], written)];

    const text = new StoppedText([params.stop ?? []].flat());
    const ending = new Map([...(params.ignore_eos ? [] : this.about.end_ids).map((/** @type {number} */ id) => [id, "end_token"]),
      ...params.stop_token_ids.map((/** @type {number} */ id) => [id, "stop_token"])]);
    /** @type {number[]} */
    const output = [];
    /** @type {string | number | null} */
    let matched = null;
    let fingerprint = START, reason = most === params.max_tokens ? "max_tokens" : "context_full";
    let cached = 0;
    while (output.length < most) {
      const started = performance.now(), at = ids.length + output.length;
      const known = await this.read([...ids, ...output], signal);
      if (known < 0) return;
      if (!output.length) cached = known;
      const ran = performance.now();
      const drawn = this.core.draw({
        chain, seed: drawSeed, position: at, output, candidates: head.candidates, tracked, forced: forced[output.length],
      });
      fingerprint = chainHash(fingerprint, drawn.logits_hash);
      const ends = ending.get(drawn.token_id);
      const step = {
        kind: "step", index: output.length, position: at, token_id: drawn.token_id, sampled_id: drawn.sampled_id,
        source: output.length < forced.length ? "forced" : isGreedy ? "greedy" : "sampled",
        text: ends ? "" : text.push(this.tokenizer.bytes(drawn.token_id)),
        ...figures(drawn, isGreedy), kv_tokens: at,
        ms: { schedule: 0, run: ms(ran - started), sample: ms(performance.now() - ran) },
        logits_hash: hexadecimal(drawn.logits_hash), fingerprint: hexadecimal(fingerprint),
      };
      output.push(drawn.token_id);
      yield [...this.newTokens(named(drawn), written), step];
      if (ends) [reason, matched] = [ends, drawn.token_id];
      else if (text.matched !== null) [reason, matched] = ["stop_string", text.matched];
      if (matched !== null) break;
    }
    yield [{
      kind: "end", reason, matched, usage: { prompt_tokens: ids.length, cached_tokens: cached, completion_tokens: output.length },
      fingerprint: hexadecimal(fingerprint), text: text.end(), error: null, speculation: { proposed: 0, accepted: 0 },
    }];
  }

  /** @param {Json} params @param {number[]} prompt @returns {import("./core.js").Chain} */
  chain(params, prompt) {
    const stages = chainOf(params, this.about);
    const history = stages.some(({ stage }) => this.about.stages.find(({ name }) => name === stage)?.history ?? false);
    return { greedy: params.temperature === 0, stages: stages.map(nativeStage), history, prompt: history ? prompt : [] };
  }

  /** @param {Json} params refuse a setting that only a server knows */
  check(params) {
    const known = [...this.about.stages.flatMap(({ rule }) => Object.values(rule)), ...OWN];
    for (const [name, value] of Object.entries(params)) {
      if (known.includes(name) || JSON.stringify(value) === JSON.stringify(this.about.defaults[name])) continue;
      throw Object.assign(new Error(`${name}: this page cannot do that; cutaway serve can`), { param: name });
    }
  }

  /**
   * Records of the tokens that have none yet, by id.
   * @param {number[]} ids
   * @param {Set<number>} written
   */
  newTokens(ids, written) {
    const fresh = [...new Set(ids)].filter((id) => !written.has(id)).sort((a, b) => a - b);
    for (const id of fresh) written.add(id);
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
 * The stages that the settings need, in their order, as src/cutaway/sampling/chain.py builds them.
 * @param {Json} params every setting
 * @param {{stages: StageEntry[], presets: Record<string, string[]>}} about
 * @returns {{stage: string, rule: Json}[]}
 */
export function chainOf(params, { stages, presets }) {
  /** @type {string[]} */
  const order = params.chain ?? presets[params.preset];
  return order.flatMap((name) => {
    const entry = stages.find((one) => one.name === name);
    if (!entry || !entry.switches.some((one) => isOn(entry, one, params[one]))) return [];
    if (params.temperature === 0 && !entry.at_zero) return [];
    return [{ stage: name, rule: Object.fromEntries(Object.entries(entry.rule).map(([key, of]) => [key, params[of]])) }];
  });
}

/** @param {StageEntry} entry @param {string} name @param {any} value */
function isOn(entry, name, value) {
  const param = entry.params.find((one) => one.name === name);
  return param ? value !== param.off : Object.keys(value ?? {}).length > 0;
}

/**
 * A stage as the core takes it: its numbers, what is added to ids, and ids.
 * @param {{stage: string, rule: Json}} of @returns {[string, number[], [number, number][], number[]]}
 */
function nativeStage({ stage, rule }) {
  const values = Object.values(rule);
  const bias = values.filter((value) => typeof value === "object" && !Array.isArray(value)).flatMap((by) => Object.entries(by));
  return [stage, values.filter((value) => typeof value === "number"), bias.map(([id, by]) => [Number(id), by]), values.filter(Array.isArray).flat()];
}

/** @param {Drawn} drawn */
function named(drawn) {
  return [drawn.sampled_id, ...drawn.candidates.map(({ id }) => id), ...drawn.stages.flatMap((stage) => stage.top_removed)];
}

/**
 * What a step's line says of the draw: candidates as columns, logits with nine digits (trace/steps.py).
 * @param {Drawn} drawn
 * @param {boolean} isGreedy
 */
function figures(drawn, isGreedy) {
  const column = (/** @type {keyof import("./core.js").Candidate} */ name) => drawn.candidates.map((each) => each[name]);
  return {
    candidates: {
      id: column("id"), logit: drawn.candidates.map(({ logit }) => short(logit)), rank: column("rank"),
      delta: drawn.candidates.map(({ delta }) => short(delta)), removed_by: column("removed_by"),
      final_logprob: column("final_logprob"), luck: isGreedy ? drawn.candidates.map(() => null) : column("luck"),
    },
    maximum: short(drawn.maximum), log_sum_exp: drawn.log_sum_exp, entropy: drawn.entropy, rank: drawn.rank,
    logprob: drawn.logprob, final_rank: drawn.final_rank, final_logprob: drawn.final_logprob,
    final_log_sum_exp: drawn.final_log_sum_exp,
    stages: drawn.stages.map((stage) => ({ ...stage, min_kept_logit: stage.min_kept_logit === null ? null : short(stage.min_kept_logit) })),
    logit_histogram: drawn.logit_histogram,
  };
}

const START = 0xc07a0a1dn, GOLDEN = 0x9e3779b97f4a7c15n, MIX = 0xd6e8feb86659fd93n;

/**
 * sampling/observe.py.
 * @param {bigint} soFar
 * @param {bigint} row
 */
export function chainHash(soFar, row) {
  const mixed = BigInt.asUintN(64, (soFar ^ row) * MIX);
  return BigInt.asUintN(64, (mixed ^ (mixed >> 29n)) * GOLDEN);
}

/** @param {bigint} word */
const hexadecimal = (word) => word.toString(16).padStart(16, "0");
/** @param {number} value */
const short = (value) => Number(value.toPrecision(9));
/** @param {number} value */
const ms = (value) => Math.round(value * 1e4) / 1e4;
const nextTask = () => new Promise((resolve) => setTimeout(resolve, 0));

function randomSeed() {
  const words = crypto.getRandomValues(new Uint32Array(2));
  return (BigInt(words[0] ?? 0) << 32n) | BigInt(words[1] ?? 0);
}
