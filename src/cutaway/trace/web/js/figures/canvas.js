/**
 * A canvas pass by pass: the token of each cell after each pass, and the history of a cell.
 *
 * Works out each pass once, also while they arrive. Knows the record. Knows no document.
 */

/** @import { Pass, PassCell, Trace } from "../state/trace.js" */

/**
 * The state of a cell after a pass. kept: its token was there before; fresh: revealed in this pass; edited: its token
 * was replaced; again: masked again; masked: computed, but not revealed; later: not computed, since its block has
 * not begun
 * @typedef {"kept" | "fresh" | "edited" | "again" | "masked" | "later"} CellState
 *
 * token  of the cell; where it is masked, the likeliest one; where it is noise, the random one that the next pass reads,
 *        or the likeliest one after the last pass; null: there is none
 * seen   what the pass computed of the cell; null: nothing
 * @typedef {{state: CellState, token: number | null, seen: PassCell | null}} Shown
 *
 * seen     null: the pass computed nothing of the cell, and masked it again
 * place    of the cell in the order of those among which the rule chose, from 1; 0: it was not one of them
 * of       how many cells these were: the masked ones, or all
 * @typedef {{pass: Pass, seen: PassCell | null, state: CellState, place: number, of: number}} Moment
 *
 * passes       their number; rows: that they computed
 * perPass      tokens revealed per pass, of those that are there now
 * bound        of all passes: the nats that revealing cells together loses at most
 * order        Kendall's τ of the order of revealing and that from left to right: 1 is left to right, −1 right to
 *              left; null: all were revealed at once, or only one was
 * @typedef {{passes: number, rows: number, perPass: number, bound: number, order: number | null}} Totals
 */

const MASKED = -1;

export class Canvas {
  /** @param {Trace} trace */
  constructor(trace) {
    this.trace = trace;
    this.first = trace.head.prompt_token_ids.length;
    this.length = trace.places;
    const rule = trace.head.decoder?.rule ?? {};
    /** Whether cells that are not revealed hold random tokens. */
    this.isNoise = rule["start"] === "noise";
    /** Whether each pass chooses among all cells of a block. */
    this.choosesAnew = rule["remask"] === "unchosen";
    /** @type {Int32Array[]} the token of each cell, or −1, after each pass */
    this.tokens = [];
    /** @type {Map<number, PassCell>[]} what each pass computed, by cell */
    this.seen = [];
    /** The largest entropy of a cell in any pass, in nats, or a little more than 0. */
    this.largestEntropy = 1e-9;
    this.grow();
  }

  /** Add the new passes. */
  grow() {
    for (const pass of this.trace.passes.slice(this.tokens.length)) {
      const now = this.tokens.at(-1)?.slice() ?? new Int32Array(this.length).fill(MASKED);
      const cells = new Map(pass.cells.map((seen) => [seen.position - this.first, seen]));
      for (const [cell, seen] of cells) now[cell] = seen.now ?? MASKED;
      for (const seen of pass.cells) this.largestEntropy = Math.max(this.largestEntropy, seen.entropy);
      for (const position of pass.masked_again) now[position - this.first] = MASKED;
      this.tokens.push(now);
      this.seen.push(cells);
    }
  }

  /** @param {number} at a pass @param {number} cell @returns {Shown} */
  cellAfter(at, cell) {
    const now = this.tokens[at]?.[cell] ?? MASKED;
    const seen = this.seen[at]?.get(cell) ?? null;
    const state = this.state(at, cell);
    const noise = this.isNoise ? this.seen[at + 1]?.get(cell)?.read : undefined;
    return { state, seen, token: now === MASKED ? noise ?? seen?.likely[0] ?? null : now };
  }

  /** @param {number} at @param {number} cell @returns {CellState} */
  state(at, cell) {
    const before = this.tokens[at - 1]?.[cell] ?? MASKED;
    const now = this.tokens[at]?.[cell] ?? MASKED;
    const pass = this.trace.passes[at];
    if (now === MASKED) {
      if (pass?.masked_again.includes(cell + this.first)) return "again";
      return this.seen[at]?.has(cell) ? "masked" : "later";
    }
    if (before === MASKED) return "fresh";
    return before === now ? "kept" : "edited";
  }

  /** @param {number} at @returns {PassCell[]} the cells among which a pass chooses, in the order in which its rule reveals them */
  order(at) {
    const cells = this.trace.passes[at]?.cells.filter((seen) => this.choosesAnew || seen.was === null) ?? [];
    return cells.sort((a, b) => b.figure - a.figure || a.position - b.position);
  }

  /** @param {number} at @returns {PassCell | null} the cell that would have been revealed next */
  next(at) {
    return this.order(at).find((seen) => seen.now === null) ?? null;
  }

  /** @param {number} cell @returns {Moment[]} every pass that computed the cell, or masked it again */
  history(cell) {
    return this.trace.passes.flatMap((pass, at) => {
      const seen = this.seen[at]?.get(cell) ?? null;
      if (!seen && !pass.masked_again.includes(cell + this.first)) return [];
      const order = this.order(at);
      const place = seen ? 1 + order.indexOf(seen) : 0;
      return [{ pass, seen, state: this.state(at, cell), place, of: order.length }];
    });
  }

  /** @returns {number[]} the pass in which each cell got its token; −1: it is masked */
  get since() {
    const since = new Array(this.length).fill(MASKED);
    this.tokens.forEach((now, at) => now.forEach((token, cell) => {
      const before = this.tokens[at - 1]?.[cell] ?? MASKED;
      if (token !== before) since[cell] = token === MASKED ? MASKED : at;
    }));
    return since;
  }

  /** @returns {Totals} of the passes so far */
  get totals() {
    const { passes } = this.trace;
    const since = this.since.filter((at) => at !== MASKED);
    const sum = (/** @type {(pass: Pass) => number} */ of) => passes.reduce((all, pass) => all + of(pass), 0);
    return {
      passes: passes.length, rows: sum((pass) => pass.rows), perPass: since.length / (passes.length || 1),
      bound: sum((pass) => pass.bound), order: kendall(since),
    };
  }
}

/**
 * Kendall's τ-b of an order and the one from left to right: concordant pairs minus discordant ones, without ties.
 * @param {number[]} since @returns {number | null}
 */
export function kendall(since) {
  let [agree, apart, untied, all] = [0, 0, 0, 0];
  for (let b = 1; b < since.length; b++) {
    for (let a = 0; a < b; a++) {
      const by = (since[b] ?? 0) - (since[a] ?? 0);
      all += 1;
      if (by) untied += 1;
      if (by > 0) agree += 1;
      else if (by < 0) apart += 1;
    }
  }
  return untied ? (agree - apart) / Math.sqrt(untied * all) : null;
}

/** @type {WeakMap<Trace, Canvas>} */
const canvases = new WeakMap();

/** @param {Trace} trace @returns {Canvas | null} up to its last pass; null: the trace is not of a canvas */
export function canvasOf(trace) {
  if (!trace.known?.decoder) return null;
  let canvas = canvases.get(trace);
  if (!canvas) canvases.set(trace, (canvas = new Canvas(trace)));
  canvas.grow();
  return canvas;
}

/** @param {Record<string, any>} rule as in a head @returns {string} its settings that differ from the defaults */
export function ruleInWords(rule) {
  const settings = Object.entries(rule).map(([name, value]) => {
    if (name === "forced_cells") return `${value.length} forced`;
    const label = name.replaceAll("_", " ");
    return value === true ? label : `${label} ${value}`;
  });
  return settings.join(", ") || "one cell per pass, the most confident first";
}
