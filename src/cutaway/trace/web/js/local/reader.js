/**
 * One text's tokens on their way through a model: which of them have keys and values, and which are yet to be run.
 *
 * Knows that a runner takes tokens and keeps the last one's logits for the core's draw; not which device it runs on.
 */

/**
 * @typedef {{run: (tokens: number[], first: number) => void | Promise<void>, hasStates: boolean, rows?: number, longest?: number}} Runner
 * hasStates: a text can only be continued from its last token; rows: the most tokens of a run; longest: of a text
 */

const CHUNK = 64;  // tokens of a prompt in one run, so that the page can stop between two
const PAUSE = 16;  // ms without a look at messages

export class Reader {
  /** @param {Runner} runner */
  constructor(runner) {
    this.runner = runner;
    /** @type {number[]} the text whose keys and values the runner has */
    this.cachedIds = [];
    this.paused = performance.now();
  }

  /** The most tokens of a text. */
  get longest() {
    return this.runner.longest ?? Infinity;
  }

  /**
   * Compute the part of a text that the runner has not cached, so that the next token can be drawn.
   * @param {number[]} ids @param {AbortSignal} [signal] @param {number} again how many of the last tokens are computed in any case
   * @returns {Promise<number>} how many tokens were cached; -1: it was stopped
   */
  async read(ids, signal, again = 1) {
    const same = this.cachedIds.findIndex((id, i) => id !== ids[i]);
    let count = Math.min(same < 0 ? this.cachedIds.length : same, ids.length - again);
    if (this.runner.hasStates && count < this.cachedIds.length) count = 0; // the state is that after its last token
    const rows = Math.min(CHUNK, this.runner.rows ?? CHUNK);
    for (let first = count; first < ids.length; first += rows) {
      if (signal?.aborted) return -1;
      this.cachedIds = ids.slice(0, first);
      await this.runner.run(ids.slice(first, first + rows), first);
      this.cachedIds = ids.slice(0, first + rows);
      await this.pause();
    }
    this.cachedIds = ids;
    return count;
  }

  /** Let messages in, such as one that stops the text; not at every token, since browsers delay a timer by 4 ms. */
  async pause() {
    if (performance.now() - this.paused < PAUSE) return;
    await nextTask();
    this.paused = performance.now();
  }
}

const nextTask = () => new Promise((resolve) => setTimeout(resolve, 0));
