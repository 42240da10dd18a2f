/**
 * A trace: the record of a run (docs/trace.md), read from a file or line by line as it arrives.
 *
 * Knows the format and checks that the records fit together. Knows no document, and not where lines come from. Seeds are
 * strings, since they have 64 bits and JavaScript's numbers 53.
 */

import { format } from "../figures/catalogue.js";

/**
 * @typedef {{id: number, logit: number, rank: number, delta: number, removed_by: number | null,
 *   final_logprob: number | null, luck: number | null}} Candidate
 * @typedef {{survivors: number, removed_mass: number, log_sum_exp: number,
 *   min_kept_logit: number | null, top_removed: number[]}} StageRecord
 * @typedef {{layers: number, heads: number, kv_heads: number, hidden: number, mlp: number, experts: number,
 *   experts_used: number}} Sizes of the model
 * @typedef {{kind: "head", model: string, weights: string, tokenizer: string, backend: string,
 *   tier: string, threads: number, vocab_size: number, prompt: string | null,
 *   prompt_token_ids: number[], chain: import("../figures/numbers.js").Stage[], params: Record<string, any>,
 *   seed: string, interventions?: {text: string}[], candidates: number, tracked_ids: number[], end_ids: number[],
 *   kv_bytes_per_token: number,
 *   parent: {trace: string, step: number, token_id: number | null} | null,
 *   decoder?: {kind: string, rule: Record<string, any>, attention: "causal" | "bidirectional" | "canvas" | number, shift: boolean,
 *   mask_id: number | null, suffix_ids: number[]},
 *   sizes?: Sizes,
 *   grammar?: {kind: string, text: string, sha256: string, engine: string, compact: boolean}}} Head
 * @typedef {{index: number, position: number, token_id: number, sampled_id: number, source: string,
 *   text: string, candidates: Candidate[], maximum: number, log_sum_exp: number, entropy: number,
 *   rank: number, logprob: number, final_rank: number | null, final_logprob: number | null,
 *   final_log_sum_exp: number, stages: StageRecord[], logit_histogram: number[], kv_tokens?: number,
 *   ms: Record<string, number>, logits_hash: string, fingerprint: string,
 *   unconstrained_id?: number, refused_by?: string[], pass_index?: number}} Step
 * @typedef {{position: number, token_id: number, logprob: number, entropy: number, figure: number,
 *   was: number | null, now: number | null, likely: number[], likely_logprob: number[],
 *   logits_hash: string, read?: number}} PassCell
 * @typedef {{index: number, block: [number, number], rows: number, cells: PassCell[], masked_again: number[],
 *   bound: number, redraw: number, ms: Record<string, number>, fingerprint: string}} Pass
 * @typedef {{reason: string, matched: string | number | null, usage: Record<string, number>,
 *   fingerprint: string, text: string, error: string | null,
 *   speculation: Record<string, number>}} End
 */

/** What is wrong with a file, in a sentence. */
export class TraceError extends Error {}

const SLICE = 20; // milliseconds in which the page does not answer

export class Trace {
  constructor() {
    this.version = format.version; // of the format
    /** @type {Head | null} */
    this.known = null;
    /** @type {Step[]} */
    this.steps = [];
    /** @type {Pass[]} of a canvas */
    this.passes = [];
    /** @type {End | null} */
    this.end = null;
    /** @type {string[]} the lines of the file that it was read from, unchanged; a fork names their hash */
    this.fileLines = [];
    /** @type {any[]} the records that came otherwise; what is large of a step is in it and here once */
    this.records = [];
    /** @type {Map<number, {bytes: Uint8Array, name: string | null, shown?: string}>} `shown`: as a text, once it was asked for */
    this.tokens = new Map();
  }

  /** @param {string} file its text @returns {Trace} */
  static parse(file) {
    const reading = Trace.lineByLine(file);
    let line = reading.next();
    while (!line.done) line = reading.next();
    return line.value;
  }

  /**
   * Parse a file as `parse` does, in slices, so that the page answers meanwhile.
   * @param {string} file its text @param {(share: number, trace: Trace) => Promise<void>} pause after a slice: how much was read
   * @returns {Promise<Trace>}
   */
  static async read(file, pause) {
    const trace = new Trace();
    const reading = Trace.lineByLine(file, trace);
    for (let began = performance.now(), line = reading.next(); !line.done; line = reading.next()) {
      if (performance.now() - began < SLICE) continue;
      await pause(line.value, trace);
      began = performance.now();
    }
    return trace;
  }

  /** @param {string} file @param {Trace} [trace] that takes the lines @returns {Generator<number, Trace, void>} after each line, which share of the file was read */
  static *lineByLine(file, trace = new Trace()) {
    const end = file.lastIndexOf("\n") + 1; // the last line of an aborted run may be incomplete
    for (let from = 0, number = 1; from < end; number++) {
      const to = file.indexOf("\n", from);
      trace.takeLine(file.slice(from, to), number);
      from = to + 1;
      yield from / end;
    }
    if (!trace.known) throw new TraceError("this is not a trace: it has no complete line");
    return trace;
  }

  /** @param {string} line @param {number} number counted from 1 */
  takeLine(line, number) {
    let record;
    try {
      record = recordOf(line);
    } catch {
      throw new TraceError(`line ${number} is not JSON`);
    }
    try {
      this.take(record);
    } catch (error) {
      if (error instanceof TraceError) throw new TraceError(`line ${number}: ${error.message}`);
      throw new TraceError(`line ${number} is not a record of a trace`);
    }
    this.fileLines.push(line);
  }

  /** @param {any} record the next one, which no file has */
  keep(record) {
    this.take(record);
    this.records.push(record);
  }

  /** @param {any} record the next one */
  take(record) {
    if (!this.known) this.version = record.version;
    if (this.version !== format.version) record = renameFields(record, record.kind);
    if (!this.known) {
      if (record.format !== "cutaway-trace" || !format.readable.includes(record.version)) {
        throw new TraceError(`this is not a trace of version 1 to ${format.version}`);
      }
      this.known = record;
    } else if (this.end) {
      throw new TraceError("a record follows the end");
    } else if (record.kind === "tok") {
      this.tokens.set(record.id, { bytes: bytesOf(record), name: record.name ?? null });
    } else if (record.kind === "step") {
      this.takeStep(record);
    } else if (record.kind === "pass") {
      this.takePass(record);
    } else if (record.kind === "end") {
      this.end = record;
    } else {
      throw new TraceError("its kind is unknown");
    }
  }

  /** @param {any} record */
  takeStep(record) {
    if (record.index !== this.steps.length) throw new TraceError("a step is missing");
    if (record.stages.length !== this.head.chain.length) {
      throw new TraceError("its stages are not those of the chain");
    }
    const { kind: _, candidates, ...step } = record;
    const stages = record.stages.map((/** @type {StageRecord} */ stage) =>
      ({ ...stage, min_kept_logit: stage.min_kept_logit === null ? null : single(stage.min_kept_logit) }));
    const columns = new Columns(candidates);
    this.steps.push({ ...step, maximum: single(record.maximum), stages, get candidates() { return columns.rows; } });
  }

  /** @param {any} record */
  takePass(record) {
    if (record.index !== this.passes.length) throw new TraceError("a pass is missing");
    const { kind: _, ...pass } = record;
    this.passes.push({ ...pass, cells: objects(record.cells) });
  }

  /** @returns {Head} */
  get head() {
    if (!this.known) throw new TraceError("the trace has no head yet");
    return this.known;
  }

  /** @returns {number} how many steps can be selected; of a canvas: how many cells */
  get places() {
    return this.known?.decoder ? this.head.params["max_tokens"] : this.steps.length;
  }

  /** @returns {number[]} the generated tokens */
  get outputIds() {
    return this.steps.map((step) => step.token_id);
  }

  /** @returns {string} the generated text */
  get text() {
    return this.steps.map((step) => step.text).join("") + (this.end?.text ?? "");
  }

  /** @param {number} id @returns {string} the name of a special token, or the token's text, cut if it is long */
  nameOf(id) {
    const token = this.tokens.get(id);
    if (!token) return `[${id}]`;
    return (token.shown ??= nameFrom(token));
  }

  /** @param {number[]} ids @returns {string} their text, decoded from all bytes together */
  textOf(ids) {
    const bytes = ids.map((id) => this.tokens.get(id)?.bytes ?? new Uint8Array());
    const buffer = new Uint8Array(bytes.reduce((length, part) => length + part.length, 0));
    bytes.reduce((at, part) => (buffer.set(part, at), at + part.length), 0);
    return new TextDecoder().decode(buffer);
  }

  /** @returns {string[]} of the file */
  get lines() {
    return this.records.length ? this.records.map(lineOf) : this.fileLines;
  }

  /** @returns {string} the file */
  get file() {
    return this.lines.map((line) => `${line}\n`).join("");
  }
}

/** @param {string} line of a file, or JSON of the server @returns {any} its record, with seeds as strings */
export const recordOf = (line) => JSON.parse(line.replaceAll(/"seed":(\d+)/g, '"seed":"$1"'));

/**
 * A record as a line of a file. Numbers keep their values, but not their notation: 1.0 becomes 1.
 * @param {any} record @returns {string}
 */
export const lineOf = (record) => JSON.stringify(record).replaceAll(/"seed":"(\d+)"/g, '"seed":$1');

/**
 * A record of an old version with current names, as in trace/check.py.
 * @param {any} value @param {string} path kind of the record and field, in old names @returns {any}
 */
function renameFields(value, path) {
  const names = format.renames[path];
  if (!names || value === null) return value;
  if (Array.isArray(value)) return value.map((element) => renameFields(element, path));
  if (typeof value !== "object") return names[value] ?? value;
  return Object.fromEntries(Object.entries(value).map(([name, field]) =>
    [names[name] ?? name, renameFields(field, `${path}.${name}`)]));
}

const MOST_OF_NAME = 1000; // bytes, or characters, of a token; a file may have any

/** A float32 of the file, which has only as many digits as identify it. */
const single = Math.fround;

/** @param {Record<string, any[]>} columns of equal length @returns {any[]} an object for each entry */
function objects(columns) {
  const names = Object.keys(columns);
  const [first = []] = Object.values(columns);
  return first.map((_, i) => Object.fromEntries(names.map((name) => [name, columns[name]?.[i]])));
}

/** The candidates of a step, as columns: a fifth of the memory of rows, which are made where they are asked for. */
class Columns {
  /** @param {Record<string, any[]>} columns */
  constructor(columns) {
    this.columns = columns;
    /** @type {WeakRef<Candidate[]> | null} */
    this.latest = null;
  }

  /** @returns {Candidate[]} the same as before, as long as somebody has them */
  get rows() {
    const cached = this.latest?.deref();
    if (cached) return cached;
    const rows = objects(this.columns).map((row) => ({ ...row, logit: single(row.logit), delta: single(row.delta) }));
    this.latest = new WeakRef(rows);
    return rows;
  }
}

/** @param {{text?: string, hex?: string}} record @returns {Uint8Array} */
function bytesOf(record) {
  if (record.hex === undefined) return new TextEncoder().encode(record.text ?? "");
  return Uint8Array.from(record.hex.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

/** @param {string} name of a token, in which Python writes invisible bytes as <0x0A> @returns {string} with these bytes decoded */
export const unescapeName = (name) => name.replaceAll(/(?:<0x[0-9A-F]{2}>)+/g, (all) =>
  decodeBytes(bytesOf({ hex: all.replaceAll(/<0x|>/g, "") })));

/** @param {{bytes: Uint8Array, name: string | null}} token @returns {string} its name or text, of which a very long one is cut */
function nameFrom({ bytes, name }) {
  const text = name ?? (bytes.length > MOST_OF_NAME ? `${new TextDecoder().decode(bytes.subarray(0, MOST_OF_NAME))} …` : decodeBytes(bytes));
  return text.length > MOST_OF_NAME ? `${text.slice(0, MOST_OF_NAME)} …` : text;
}

/** @param {Uint8Array} bytes @returns {string} with \xe4 for each byte if they are not valid UTF-8 */
function decodeBytes(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return [...bytes].map((b) => `\\x${b.toString(16).padStart(2, "0")}`).join("");
  }
}

/**
 * The text of a file that may be gzipped, and may be truncated.
 * @param {Blob} file @returns {Promise<string>}
 */
export async function readFile(file) {
  const start = new Uint8Array(await file.slice(0, 2).arrayBuffer());
  if (start[0] !== 0x1f || start[1] !== 0x8b) return file.text();
  const reader = file.stream().pipeThrough(new DecompressionStream("gzip")).getReader();
  const decoder = new TextDecoder();
  let text = "";
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      text += decoder.decode(part.value, { stream: true });
    }
  } catch (error) {
    if (!text) throw new TraceError("the gzip stream is damaged");
  }
  return text;
}
