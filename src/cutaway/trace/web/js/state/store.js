/**
 * What the page shows, in one place, and as its address.
 *
 * Every change goes through `set`, is announced once per frame, and is written into the
 * fragment of the URL, which no server sees. A run is its request: the same prompt, settings, seed
 * and given tokens bring back the same text, so that an address is all that a reload needs.
 */

/**
 * A run on the page. `request` is what brings it back; null: it came from a file. `param` is the
 * field that the server did not like.
 * @typedef {{id: number, trace: import("./trace.js").Trace, request: Request | null,
 *   parent: number | null, at: number, live: boolean, name: string, error: string | null,
 *   param?: string | null}} Run
 *
 * What is asked of the server; `forced` are the tokens that the text begins with.
 * @typedef {{kind: "chat" | "completion", prompt: string | number[], messages: Message[],
 *   settings: Record<string, any>, seed: string | null, forced: number[]}} Request
 *
 * What somebody said; `run` is the run that an answer comes from.
 * @typedef {{role: string, content: string, run?: number}} Message
 *
 * What an address keeps of a run.
 * @typedef {{id: number, request: Request, parent: number | null, at: number, name: string}} Kept
 *
 * run, step     which run, and which of its steps; other: the run beside it
 * candidate     which row of the waterfall
 * pass          of a canvas, which pass is shown; null: the last
 * panel         which panel is open: "step", "canvas", "timelines", "why", "what-if", "inside",
 *               "without", "tree", "compare", "lesson"
 * inside        of the inside: what tints the text, what colours the heads, which head and part is chosen
 * lesson        which lesson: "practice", "snowball", "stop"
 * follow        whether the selection follows a run that grows
 * kind          how one writes: a conversation, a text that goes on, or token by token
 * draft         what the conversation's field holds; prompt: that of a completion
 * seed          of the next run; empty: one is chosen
 * typing        the run that is typed: its given tokens are the picks
 * price         of a million tokens
 * refused       what the server said to a request that it did not take, and to which of its fields
 * notice        a sentence for the person; null: nothing is to be said
 * about         what is served, with "models" where there are several to choose from, with "canvas" where it reveals these and writes none from left to right; null: nothing was asked yet, or there is no server
 * locked        whether the server wants a key that it was not given
 * @typedef {{by: import("../figures/inside.js").Measure, map: import("../figures/inside.js").MapBy,
 *   head: [number, number] | null, part: string | null}} Chosen
 *
 * @typedef {{inside: Chosen, runs: Run[], run: number, step: number, candidate: number, pass: number | null, other: number | null,
 *   panel: string, lesson: string, follow: boolean, whatIf: Record<string, number> | null,
 *   kind: "chat" | "completion" | "typing", draft: string, prompt: string, messages: Message[],
 *   settings: Record<string, any>, seed: string, typing: number | null,
 *   price: {input: number, output: number} | null,
 *   refused: {param: string | null, message: string} | null, notice: string | null,
 *   about: About | null, locked: boolean}} State
 *
 * @typedef {{model: string, models?: string[], weights: string, version: string, context: number,
 *   attention: string | number, chat: boolean, defaults: Record<string, any>, canvas?: {blocks: boolean, usual: boolean} | null}} About
 */

/** @type {State} */
const BEGINNING = {
  runs: [], run: 0, step: 0, candidate: 0, pass: null, other: null, panel: "step", lesson: "practice", follow: true,
  inside: { by: "weight", map: "push", head: null, part: null },
  whatIf: null, kind: "chat", draft: "", prompt: "", messages: [], settings: {},
  seed: "", typing: null, price: null, refused: null, notice: null, about: null,
  locked: false,
};

/** The part of the state that the address holds. */
const ADDRESS = /** @type {const} */ ([
  "run", "step", "candidate", "pass", "other", "panel", "lesson", "inside", "whatIf", "kind", "draft", "prompt", "messages",
  "settings", "seed", "typing", "price",
]);

export class Store extends EventTarget {
  constructor() {
    super();
    /** @type {State} */
    this.state = structuredClone(BEGINNING);
    this.scheduled = false;
  }

  /** @param {Partial<State>} change */
  set(change) {
    Object.assign(this.state, change);
    this.changed();
  }

  /** Announce a change, once per frame however much changes. */
  changed() {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => {
      this.scheduled = false;
      this.dispatchEvent(new Event("change"));
    });
  }

  /** @returns {Run | null} the selected run */
  get run() {
    return this.find(this.state.run);
  }

  /** @param {number | null} id @returns {Run | null} */
  find(id) {
    return this.state.runs.find((run) => run.id === id) ?? null;
  }

  /**
   * @param {Omit<Run, "id">} run
   * @param {number} [id] the one that it had; then the selection stays as it is
   * @returns {Run} it, selected
   */
  add(run, id) {
    const fresh = 1 + Math.max(0, ...this.state.runs.map((other) => other.id));
    const added = { ...run, id: id ?? fresh };
    this.set({ runs: [...this.state.runs, added] });
    if (id === undefined) {
      this.set({ run: fresh, step: 0, candidate: 0, pass: null, follow: run.live, whatIf: null });
    }
    return added;
  }

  /** @param {Run} run where it is a canvas and the step's panel is open, its cells are shown instead */
  showCanvas(run) {
    const { panel, run: shown } = this.state;
    if (run.trace.known?.decoder && shown === run.id && panel === "step") this.set({ panel: "canvas" });
  }

  /** @param {number} id a run that is to be forgotten */
  drop(id) {
    this.set({ runs: this.state.runs.filter((run) => run.id !== id) });
  }

  /** @param {number} id which run to look at; the step stays where both have it */
  select(id) {
    const places = this.find(id)?.trace.places ?? 0;
    const step = Math.max(0, Math.min(this.state.step, places - 1));
    this.set({ run: id, step, candidate: 0, pass: null, follow: false, whatIf: null });
  }

  /** @param {number} step where to go; stepping by hand ends following */
  goTo(step) {
    const last = (this.run?.trace.places ?? 0) - 1;
    const there = Math.max(0, Math.min(step, last));
    this.set({ step: there, candidate: 0, follow: this.run?.live === true && there === last });
  }

  // -- the address --------------------------------------------------------------------------------

  /** @returns {string} the fragment that brings this state back: a word for each that is not usual */
  get address() {
    const address = new URLSearchParams();
    for (const name of ADDRESS) {
      const value = this.state[name];
      const plain = typeof value === "string" ? value : JSON.stringify(value);
      if (JSON.stringify(value) !== JSON.stringify(BEGINNING[name])) address.set(name, plain);
    }
    const again = this.state.runs.filter((run) => run.request);
    const runs = again.map(({ id, request, parent, at, name }) => ({ id, request, parent, at, name }));
    if (runs.length) address.set("runs", JSON.stringify(runs));
    return address.toString();
  }

  /**
   * @param {string} fragment
   * @returns {Kept[]} the runs that are to be brought back; what cannot be read stays as it is
   */
  restore(fragment) {
    const address = new URLSearchParams(fragment);
    for (const name of ADDRESS) {
      const text = address.get(name);
      const value = typeof BEGINNING[name] === "string" ? text : parsed(text);
      if (value !== null) Object.assign(this.state, { [name]: value });
    }
    this.changed();
    const runs = parsed(address.get("runs"));
    return Array.isArray(runs) ? runs : [];
  }
}

/** @param {string | null} text @returns {any} null where it is no JSON */
function parsed(text) {
  try {
    return JSON.parse(text ?? "null");
  } catch {
    return null;
  }
}
