/**
 * The state of the page, and its form as an address.
 *
 * Every change goes through `set`, is announced at most once per frame, and is written into the fragment of
 * the URL, which is never sent to a server. The address keeps the request of each run, since the same prompt,
 * settings, seed and forced tokens generate the same text again.
 */

/**
 * A run on the page. `request` generates it again; null: it came from a file. `parent` and `at`: the run that
 * it was forked from, and the step. `live`: it is being generated. `param`: the field that the server refused.
 * @typedef {{id: number, trace: import("./trace.js").Trace, request: Request | null,
 *   parent: number | null, at: number, live: boolean, name: string, error: string | null,
 *   param?: string | null, calls?: Call[], textBeforeCalls?: string}} Run
 *
 * A call of a tool; `arguments` is JSON, which grows while it is written. Of a run with calls, `said` is the text before them.
 * @typedef {{id: string, name: string, arguments: string}} Call
 *
 * A request to the server; `forced` are the tokens that the text begins with.
 * @typedef {{kind: "chat" | "completion", prompt: string | number[], messages: Message[],
 *   settings: Record<string, any>, seed: string | null, forced: number[]}} Request
 *
 * A message of the conversation; `run` is the run that an answer comes from, `calls` its calls, `result` the id of the call
 * whose result the message is.
 * @typedef {{role: string, content: string, run?: number, calls?: Call[], result?: string}} Message
 *
 * The part of a run that the address keeps.
 * @typedef {{id: number, request: Request, parent: number | null, at: number, name: string}} Kept
 *
 * recording     the run of the package, shown while there is no other; null: there is none, or it was not read yet
 * run, step     the selected run and step; other: the run that it is compared with
 * candidate     the selected row of the waterfall
 * pass          the pass of a canvas that is shown; null: the last
 * panel         the open panel: "step", "canvas", "timelines", "why", "what-if", "inside",
 *               "without", "tree", "lesson"
 * inside        in the panel Inside: what tints the text, what colours the map of heads, the chosen head and component
 * pointed       the head in the map that the mouse is over, shown in place of the chosen one
 * lesson        the open lesson: "practice", "snowball", "stop"
 * follow        whether the selection follows a growing run
 * kind          the open tab for writing
 * tools         the functions that a conversation offers to the model, as JSON; empty: none; mustCall: whether an answer must be a call
 * draft         the text of the conversation's field; prompt: that of the completion's
 * seed          of the next run; empty: the server chooses one
 * typing        the run of the tab "typing": its forced tokens are those that were picked
 * price         of a million tokens
 * refusal       the server's message for a refused request, and the field that it names
 * notice        a message at the top of the page
 * about         the served model; "models" where there are several, "canvas" where the model is a diffusion
 *               model; null: not asked yet, or there is no server
 * loading       whether the page still asks which model there is
 * device        what computes in a page that runs its own model; null: not known yet, or a server does
 * locked        whether the server requires a key
 * large         whether the type is large, for a projector
 * sheet         whether a phone shows the selected step in a sheet
 * arriving      whether the recording writes itself: it is shown up to the selected step
 * @typedef {{by: import("../figures/inside.js").TintBy, map: import("../figures/inside.js").MapBy,
 *   head: [number, number] | null, part: string | null}} InsideSelection
 *
 * A part of the state that a guide selects.
 * @typedef {Omit<Partial<State>, "inside"> & {inside?: Partial<InsideSelection>}} Place
 *
 * @typedef {{inside: InsideSelection, pointed: [number, number] | null, runs: Run[], recording: Run | null, run: number, step: number, candidate: number, pass: number | null, other: number | null,
 *   panel: string, lesson: string, follow: boolean, whatIf: Record<string, number> | null,
 *   kind: "chat" | "completion" | "typing", tools: string, mustCall: boolean, draft: string, prompt: string, messages: Message[],
 *   settings: Record<string, any>, seed: string, typing: number | null,
 *   price: {input: number, output: number} | null,
 *   refusal: {param: string | null, message: string} | null, notice: string | null,
 *   about: About | null, device: import("./api.js").Device | null, loading: boolean, locked: boolean, large: boolean, arriving: boolean, sheet: boolean}} State
 *
 * The model; local: it is in the page itself (local/model.js), whether that can look inside of a step, and the settings that it lacks.
 * @typedef {{model: string, local?: {inside: boolean, practice: string[], lacks: string[]}, models?: string[], weights: string, version: string, context: number,
 *   attention: string | number, writes?: boolean, chat: boolean, near?: "cosine" | "head" | "maxsim" | null, defaults: Record<string, any>, canvas?: {blocks: boolean, usual: boolean, rule: Record<string, string>, choices: Record<string, string[]>} | null}} About
 */

import { mostUncertain } from "../figures/step-view.js";
import { ADDRESS_FIELDS, readAddress } from "./address.js";
import { currentPanel, firstPanel } from "./panels.js";

/** @type {State} */
const BEGINNING = {
  runs: [], recording: null, run: 0, step: 0, candidate: 0, pass: null, other: null, panel: "step", lesson: "practice", follow: true,
  inside: { by: "weight", map: "attribution", head: null, part: null }, pointed: null,
  whatIf: null, kind: "chat", tools: "", mustCall: false, draft: "", prompt: "", messages: [], settings: {},
  seed: "", typing: null, price: null, refusal: null, notice: null, about: null, device: null,
  loading: false, locked: false, large: false, arriving: false, sheet: false,
};

export class Store extends EventTarget {
  constructor() {
    super();
    /** @type {State} */
    this.state = structuredClone(BEGINNING);
    this.scheduled = false;
    this.newest = 0; // id of a run
  }

  /** @param {Partial<State>} change */
  set(change) {
    Object.assign(this.state, change);
    this.announce();
  }

  /** Announce a change, once per frame however much changes. */
  announce() {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => {
      this.scheduled = false;
      this.dispatchEvent(new Event("change"));
    });
  }

  /** @returns {Run | null} the selected run; the recording while the reader has none, and the model writes as that was written */
  get run() {
    if (this.state.runs.length) return this.find(this.state.run);
    return firstPanel(this.state.about) === "step" ? this.state.recording : null;
  }

  /** @returns {boolean} whether the shown run is the recording */
  get showsRecording() {
    return this.run !== null && this.run === this.state.recording;
  }

  /** @returns {InsideSelection} with the head that is pointed at in place of the chosen one */
  get selectionInside() {
    const { inside, pointed } = this.state;
    return pointed ? { ...inside, head: pointed } : inside;
  }

  /** @returns {number | null} the selected candidate, with which the token is compared; null: the likeliest other token */
  get rival() {
    const step = this.run?.trace.steps[this.state.step];
    const candidate = this.state.candidate ? step?.candidates[this.state.candidate]?.id : undefined;
    return candidate === step?.token_id ? null : candidate ?? null;
  }

  /** @param {number | null} id @returns {Run | null} */
  find(id) {
    return this.state.runs.find((run) => run.id === id) ?? null;
  }

  /**
   * @param {Omit<Run, "id">} run
   * @param {number} [id] the id that it had before; then the selection does not change
   * @returns {Run} selected, unless it has an id
   */
  add(run, id) {
    const fresh = id ?? this.freshId;
    const newRun = { ...run, id: fresh };
    this.newest = Math.max(this.newest, fresh);
    this.set({ runs: [...this.state.runs, newRun] });
    if (id === undefined) {
      this.set({ run: fresh, step: 0, candidate: 0, pass: null, follow: run.live, whatIf: null });
    }
    return newRun;
  }

  /** @param {Run} run a canvas opens the panel Canvas in place of Step */
  showCanvas(run) {
    const { panel, run: selectedId } = this.state;
    if (run.trace.known?.decoder && selectedId === run.id && panel === "step") this.set({ panel: "canvas" });
  }

  /** @returns {number} of the next run; no run had it before, also of those that were removed */
  get freshId() {
    return this.newest + 1;
  }

  /** @param {number} id of the run to remove; where it is selected, the one before it is, or the one after it */
  drop(id) {
    const { runs, run, other, typing, recording } = this.state;
    const at = runs.findIndex((member) => member.id === id);
    const left = runs.filter((member) => member.id !== id);
    this.set({ runs: left, other: other === id ? null : other, typing: typing === id ? null : typing });
    const next = left[Math.max(0, at - 1)];
    if (run === id && next) this.select(next.id);
    if (next) return;
    this.set({ whatIf: null, pass: null, follow: false });
    if (recording) this.goTo(mostUncertain(recording.trace));
  }

  /** @param {number} id of the run to select @param {number} [at] the step, as far as the run has it; default: the same */
  select(id, at = this.state.step) {
    const places = this.find(id)?.trace.places ?? 0;
    const step = Math.max(0, Math.min(at, places - 1));
    this.set({ run: id, step, candidate: 0, pass: null, follow: false, whatIf: null });
  }

  /** @param {number} step to select, which ends following unless it is the last one */
  goTo(step) {
    const last = (this.run?.trace.places ?? 0) - 1;
    const there = Math.max(0, Math.min(step, last));
    this.set({ step: there, candidate: 0, follow: this.run?.live === true && there === last });
  }

  /** @param {Place} place what is selected; the rest is as on a fresh page */
  show(place) {
    const { step, candidate, pass, other, panel } = BEGINNING;
    this.set({ step, candidate, pass, other, panel, inside: BEGINNING.inside, follow: false, whatIf: null, ...completePlace(place) });
  }

  /** @param {About} about the served model has answered: open the panel of its kind, unless the address names one */
  welcome(about) {
    const { panel } = this.state;
    this.set({ about, loading: false, panel: panel === BEGINNING.panel ? firstPanel(about) : panel });
  }

  /** @param {Run} recording @param {boolean} here whether the address has named a step; else it opens at the most uncertain one */
  open(recording, here) {
    this.set({ recording });
    if (this.showsRecording) this.goTo(here ? this.state.step : mostUncertain(recording.trace));
  }

  /** Begin the arrival: the recording writes itself, up to its most uncertain step, unless a run of the reader's own is shown. */
  arrive() {
    if (!this.showsRecording) return;
    this.goTo(0);
    this.set({ arriving: true });
  }

  /** End the arrival, at its end or before: the recording is whole. */
  endArrival() {
    if (!this.state.arriving) return;
    this.set({ arriving: false });
    if (this.showsRecording) this.goTo(mostUncertain(/** @type {Run} */ (this.run).trace));
  }

  // -- the address --------------------------------------------------------------------------------

  /** @returns {string} the fragment that restores this state: every field that differs from the initial state */
  get address() {
    const address = new URLSearchParams();
    const { recording } = this.state;
    const usual = recording && this.showsRecording
      ? { ...BEGINNING, step: this.state.arriving ? this.state.step : mostUncertain(recording.trace) } : BEGINNING;
    for (const name of ADDRESS_FIELDS) {
      const value = this.state[name];
      const plain = typeof value === "string" ? value : JSON.stringify(value);
      if (JSON.stringify(value) !== JSON.stringify(usual[name])) address.set(name, plain);
    }
    const again = this.state.runs.filter((run) => run.request);
    const runs = again.map(({ id, request, parent, at, name }) => ({ id, request: orderFields(request), parent, at, name }));
    if (runs.length) address.set("runs", JSON.stringify(runs));
    return address.toString();
  }

  /**
   * @param {string} fragment
   * @returns {Kept[]} the runs to generate again; fields that cannot be read are left as they are
   */
  restore(fragment) {
    const { fields, runs } = readAddress(fragment);
    this.set(fields);
    const last = runs.at(-1);
    if (last && !runs.some(({ id }) => id === this.state.run)) this.set({ run: last.id });
    return runs;
  }
}

/** @param {Place} place @returns {Partial<State>} with all that it selects in the panel Inside */
export const completePlace = ({ inside, panel, ...rest }) =>
  ({ ...rest, ...(panel && { panel: currentPanel(panel) }), ...(inside && { inside: { ...BEGINNING.inside, ...inside } }) });

/** @param {Request | null} request @returns {Request | null} with its fields in one order, so that the same request is the same address */
const orderFields = (request) => request && (({ kind, prompt, messages, settings, seed, forced }) =>
  ({ kind, prompt, messages, settings, seed, forced }))(request);
