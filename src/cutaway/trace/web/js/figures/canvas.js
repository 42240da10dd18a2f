/**
 * A canvas pass by pass: what stood in each cell, what each pass made of it, and the life of a cell.
 *
 * Knows the record, and works out each pass once, also while they come. Knows no document.
 */

/** @import { Pass, PassCell, Trace } from "../state/trace.js" */

/**
 * What a cell is after a pass. kept: it stands since before; fresh: it was revealed in this pass;
 * edited: another token took the place; again: it went back to being masked; masked: it was looked
 * at and waits; later: nobody looked at it, since its block is not begun
 * @typedef {"kept" | "fresh" | "edited" | "again" | "masked" | "later"} Fate
 *
 * token  what stands there, or else the best guess; null: there is none
 * seen   what the pass saw of the cell; null: it did not look
 * @typedef {{fate: Fate, token: number | null, seen: PassCell | null}} Shown
 *
 * seen     null: the pass did not look at the cell, and took its token back
 * place    which one the cell was in the order of the masked ones, from 1; 0: it was not masked
 * of       how many were masked
 * @typedef {{pass: Pass, seen: PassCell | null, fate: Fate, place: number, of: number}} Moment
 *
 * passes       how many, and the rows that they computed
 * perPass      tokens per pass, of those that stand
 * bound        nats that revealing cells together can have lost at most, of all passes
 * order        Kendall's τ of the order of revealing and that from left to right: 1 as one reads,
 *              −1 backwards; null: all came at once, or only one
 * @typedef {{passes: number, rows: number, perPass: number, bound: number, order: number | null}} Totals
 */

const MASKED = -1;

export class Canvas {
  /** @param {Trace} trace */
  constructor(trace) {
    this.trace = trace;
    this.first = trace.head.prompt_token_ids.length;
    this.length = trace.places;
    /** @type {Int32Array[]} after each pass, the token of each cell, or −1 */
    this.stands = [];
    /** @type {Map<number, PassCell>[]} of each pass, by cell */
    this.looks = [];
    this.grow();
  }

  /** Take in the passes that are new. */
  grow() {
    for (const pass of this.trace.passes.slice(this.stands.length)) {
      const now = this.stands.at(-1)?.slice() ?? new Int32Array(this.length).fill(MASKED);
      const look = new Map(pass.cells.map((seen) => [seen.position - this.first, seen]));
      for (const [cell, seen] of look) now[cell] = seen.now ?? MASKED;
      for (const position of pass.masked_again) now[position - this.first] = MASKED;
      this.stands.push(now);
      this.looks.push(look);
    }
  }

  /** @param {number} at a pass @param {number} cell @returns {Shown} */
  shown(at, cell) {
    const now = this.stands[at]?.[cell] ?? MASKED;
    const seen = this.looks[at]?.get(cell) ?? null;
    const fate = this.fate(at, cell);
    return { fate, seen, token: now === MASKED ? seen?.likely[0] ?? null : now };
  }

  /** @param {number} at @param {number} cell @returns {Fate} */
  fate(at, cell) {
    const before = this.stands[at - 1]?.[cell] ?? MASKED;
    const now = this.stands[at]?.[cell] ?? MASKED;
    const pass = this.trace.passes[at];
    if (now === MASKED) {
      if (pass?.masked_again.includes(cell + this.first)) return "again";
      return this.looks[at]?.has(cell) ? "masked" : "later";
    }
    if (before === MASKED) return "fresh";
    return before === now ? "kept" : "edited";
  }

  /** @param {number} at @returns {PassCell[]} the masked cells of a pass in the order of its rule */
  order(at) {
    const cells = this.trace.passes[at]?.cells.filter((seen) => seen.was === null) ?? [];
    return cells.sort((a, b) => b.figure - a.figure || a.position - b.position);
  }

  /** @param {number} at @returns {PassCell | null} who would have been the next to be revealed */
  next(at) {
    return this.order(at).find((seen) => seen.now === null) ?? null;
  }

  /** @param {number} cell @returns {Moment[]} every pass that looked at it, or took it back */
  life(cell) {
    return this.trace.passes.flatMap((pass, at) => {
      const seen = this.looks[at]?.get(cell) ?? null;
      if (!seen && !pass.masked_again.includes(cell + this.first)) return [];
      const order = this.order(at);
      const place = seen ? 1 + order.indexOf(seen) : 0;
      return [{ pass, seen, fate: this.fate(at, cell), place, of: order.length }];
    });
  }

  /** @returns {number[]} in which pass what stands in each cell came there; −1: it is masked */
  get since() {
    const found = new Array(this.length).fill(MASKED);
    this.stands.forEach((now, at) => now.forEach((token, cell) => {
      const before = this.stands[at - 1]?.[cell] ?? MASKED;
      if (token !== before) found[cell] = token === MASKED ? MASKED : at;
    }));
    return found;
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
 * Kendall's τ-b of an order and the one from left to right: pairs that agree less those that do not,
 * ties left out.
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
const known = new WeakMap();

/** @param {Trace} trace @returns {Canvas | null} up to its last pass; null: it is none */
export function canvasOf(trace) {
  if (!trace.known?.decoder) return null;
  let canvas = known.get(trace);
  if (!canvas) known.set(trace, (canvas = new Canvas(trace)));
  canvas.grow();
  return canvas;
}

/** @param {Record<string, any>} rule as in a head @returns {string} its settings, those that differ from a plain one's */
export function ruleInWords(rule) {
  const said = Object.entries(rule).map(([name, value]) => {
    if (name === "forced_cells") return `${value.length} forced`;
    const label = name.replaceAll("_", " ");
    return value === true ? label : `${label} ${value}`;
  });
  return said.join(", ") || "one cell a pass, the surest first";
}
