/**
 * Runs as a tree: who was forked from whom, what each is called, and where its branch is drawn.
 *
 * Knows runs and what follows from them. Knows no document.
 */

import { bits, visible } from "./numbers.js";
/** @import { Run } from "../state/store.js" */

/**
 * A run's place in the drawing: its lane, counted from above, and that of its parent.
 * @typedef {{run: Run, lane: number, above: number | null, from: number, to: number}} Branch
 */

const TITLE = 48; // characters

/**
 * @param {Run[]} runs @param {Run} run
 * @returns {Run | null} what it was forked from. A fork is always younger: nothing goes in circles,
 *   whatever an address says
 */
export const parentOf = (runs, run) =>
  runs.find((other) => other.id === run.parent && other.id < run.id) ?? null;

/** @param {Run[]} runs @param {Run} run @returns {Run[]} from the root down to the run itself */
export function lineage(runs, run) {
  const parent = parentOf(runs, run);
  return parent ? [...lineage(runs, parent), run] : [run];
}

/** @param {Run[]} runs @param {Run} run @returns {Run[]} the whole tree around it, parents first */
export function family(runs, run) {
  const root = lineage(runs, run)[0];
  return runs
    .filter((other) => lineage(runs, other)[0] === root)
    .sort((a, b) => a.id - b.id);
}

/**
 * @param {Run[]} runs @param {Run} run @param {number} step
 * @returns {boolean} whether a branch only repeats its parent's token there, which nobody had chosen
 */
export function inherits(runs, run, step) {
  const parent = parentOf(runs, run);
  const fork = parent ? run.at : run.trace.known?.parent?.step ?? 0; // a file may be without its parent
  if (step >= fork) return false;
  return !parent || inherits(runs, parent, step) || step >= forcedIn(parent);
}

/** @param {Run} run @returns {number} with how many forced tokens it begins */
function forcedIn({ request, trace }) {
  if (request) return request.forced.length;
  const drawn = trace.steps.findIndex(({ source }) => source !== "forced");
  return drawn < 0 ? trace.steps.length : drawn;
}

// -- names ----------------------------------------------------------------------------------------

/** @param {Run[]} runs @param {Run} run @returns {string} what its tree began with, and its fork */
export function titleOf(runs, run) {
  const root = lineage(runs, run)[0] ?? run;
  const begun = clip(beginning(run.request ? root : run), TITLE);
  return root === run ? begun : `${begun} · ${forkOf(run)}`;
}

/** @param {Run} run @returns {string} "fork: mat at 12" */
export function forkOf({ request, name, trace }) {
  const parent = request ? null : trace.known?.parent; // a file has a name of its own
  const fork = parent ? `${trace.nameOf(parent.token_id)} at ${parent.step}` : name;
  return `fork: ${clip(visible(fork).replace(/^␣(?=\S)/, ""), TITLE)}`;
}

/** @param {Run} run @returns {string} of a file its name, else how the prompt begins */
function beginning(run) {
  if (!run.request) return run.name;
  const { prompt, messages } = run.request;
  const asked = messages.findLast((message) => message.role === "user")?.content;
  const given = typeof prompt === "string" && prompt ? prompt : asked;
  return visible((given ?? run.trace.known?.prompt ?? run.name).trim() || `run ${run.id}`);
}

/** @param {string} text @param {number} most characters @returns {string} */
export function clip(text, most) {
  const characters = [...text];
  return characters.length > most ? `${characters.slice(0, most - 1).join("")}…` : text;
}

/** @param {Run} run @returns {number | null} bits of surprise per token; null: there is none yet */
export function meanBits({ trace: { steps } }) {
  if (!steps.length) return null;
  return steps.reduce((sum, step) => sum + bits(step.logprob), 0) / steps.length;
}

// -- the drawing ----------------------------------------------------------------------------------

/**
 * @param {Run[]} runs
 * @returns {Branch[]} a lane each. Of two forks the one that leaves later lies above, so that no
 *   line crosses another
 */
export function branches(runs) {
  /** @type {Branch[]} */
  const found = [];
  /** @param {Run} run @param {number | null} above */
  const place = (run, above) => {
    const lane = found.length;
    const from = above === null ? 0 : run.at;
    found.push({ run, lane, above, from, to: Math.max(from, run.trace.steps.length) });
    const forks = runs.filter((other) => parentOf(runs, other) === run);
    for (const fork of forks.sort((a, b) => b.at - a.at || a.id - b.id)) place(fork, lane);
  };
  for (const run of runs) if (!parentOf(runs, run)) place(run, null);
  return found;
}

/** @param {number} steps @returns {number} the end of a scale that has room for them */
export function scaleEnd(steps) {
  const unit = 10 ** Math.max(1, Math.floor(Math.log10(Math.max(steps, 1)))) / (steps < 100 ? 1 : 2);
  return Math.max(unit, Math.ceil(steps / unit) * unit);
}
