/**
 * Runs as a tree: their parents, their titles, and the lanes in which they are drawn.
 *
 * Knows runs and what follows from them. Knows no document.
 */

import { bits, clip, countFrom1, visible, wordOf } from "./numbers.js";
/** @import { Run } from "../state/store.js" */
/** @import { Trace } from "../state/trace.js" */

/**
 * A run's place in the drawing: its lane, counted from the top, that of its parent, and its first and last step.
 * @typedef {{run: Run, lane: number, above: number | null, from: number, to: number}} Branch
 */

const TITLE = 48; // characters

/**
 * @param {Run[]} runs @param {Run} run
 * @returns {Run | null} the run that it was forked from; a parent has a smaller id, so that no address can make a
 *   circle
 */
export const parentOf = (runs, run) =>
  runs.find((other) => other.id === run.parent && other.id < run.id) ?? null;

/** @param {Run[]} runs @param {Run} run @returns {Run[]} from the root down to the run itself */
export function lineage(runs, run) {
  const parent = parentOf(runs, run);
  return parent ? [...lineage(runs, parent), run] : [run];
}

/** @param {Run[]} runs @param {Run} run @returns {Run[]} all runs of its tree, parents first */
export function family(runs, run) {
  const root = lineage(runs, run)[0];
  return runs
    .filter((other) => lineage(runs, other)[0] === root)
    .sort((a, b) => a.id - b.id);
}

/**
 * @param {Run[]} runs @param {Run} run @param {number} step
 * @returns {boolean} whether the token there only repeats the parent's, where it was not forced by anybody
 */
export function inherits(runs, run, step) {
  const parent = parentOf(runs, run);
  const fork = parent ? run.at : run.trace.known?.parent?.step ?? 0; // the parent of a file may not be open
  if (step >= fork) return false;
  return !parent || inherits(runs, parent, step) || step >= forcedIn(parent);
}

/** @param {Run} run @returns {number} the number of forced tokens at its beginning */
function forcedIn({ request, trace }) {
  if (request) return request.forced.length;
  const firstFree = trace.steps.findIndex(({ source }) => source !== "forced");
  return firstFree < 0 ? trace.steps.length : firstFree;
}

// -- names ----------------------------------------------------------------------------------------

/** @param {Run[]} runs @param {Run} run @returns {string} how the prompt of its tree begins, and the run's fork */
export function titleOf(runs, run) {
  const root = lineage(runs, run)[0] ?? run;
  const opening = clip(beginning(run.request ? root : run), TITLE);
  return root === run ? opening : `${opening} · ${forkOf(run)}`;
}

/** @param {Run} run @returns {string} "fork: mat at 12" */
export function forkOf({ request, name, trace }) {
  const parent = request ? null : trace.known?.parent; // the name of an opened run is that of its file
  const fork = parent ? `${changeOf(trace, parent.token_id)} at ${countFrom1(parent.step)}` : name;
  return `fork: ${clip(wordOf(fork), TITLE)}`;
}

/** @param {Trace} trace @param {number | null} id @returns {string} the forced token; null: the fork is one of interventions */
const changeOf = (trace, id) =>
  (id === null ? (trace.head.interventions ?? []).map(({ text }) => text).join(", ") : trace.nameOf(id));

/** @param {Run} run @returns {string} the file's name, else how the prompt begins */
function beginning(run) {
  if (!run.request) return run.name;
  const { prompt, messages } = run.request;
  const question = messages.findLast((message) => message.role === "user")?.content;
  const text = typeof prompt === "string" && prompt ? prompt : question;
  return visible((text ?? run.trace.known?.prompt ?? run.name).trim() || `run ${run.id}`);
}


/** @param {Run} run @returns {number | null} mean surprise in bits; null: there is no token yet */
export function meanBits({ trace: { steps } }) {
  if (!steps.length) return null;
  return steps.reduce((sum, step) => sum + bits(step.logprob), 0) / steps.length;
}

// -- the drawing ----------------------------------------------------------------------------------

/**
 * @param {Run[]} runs
 * @returns {Branch[]} each with a lane of its own; of two forks the later one is above, so that lines do not cross
 */
export function branches(runs) {
  /** @type {Branch[]} */
  const lanes = [];
  /** @param {Run} run @param {number | null} above */
  const place = (run, above) => {
    const lane = lanes.length;
    const from = above === null ? 0 : run.at;
    lanes.push({ run, lane, above, from, to: Math.max(from, run.trace.steps.length) });
    const forks = runs.filter((other) => parentOf(runs, other) === run);
    for (const fork of forks.sort((a, b) => b.at - a.at || a.id - b.id)) place(fork, lane);
  };
  for (const run of runs) if (!parentOf(runs, run)) place(run, null);
  return lanes;
}

/** @param {number} steps @returns {number} the end of a scale for them */
export function scaleEnd(steps) {
  const unit = 10 ** Math.max(1, Math.floor(Math.log10(Math.max(steps, 1)))) / (steps < 100 ? 1 : 2);
  return Math.max(unit, Math.ceil(steps / unit) * unit);
}
