/**
 * Runs as trace files. A fork names the hash of its parent's file, by which `cutaway trace diff` recognises it.
 *
 * Knows the head of a trace. Knows no document.
 */

import { lineage } from "../figures/branches.js";
import { sha256 } from "./sha256.js";
import { lineOf, recordOf } from "./trace.js";
/** @import { Run } from "./store.js" */

/** @typedef {{run: Run, name: string, bytes: Uint8Array<ArrayBuffer>, sha256: string}} Exported */

/** @param {Run[]} runs parents before their forks @returns {Promise<Exported[]>} a file each */
export async function exportRuns(runs) {
  /** @type {Exported[]} */
  const files = [];
  for (const run of runs) {
    const parent = files.find((file) => file.run.id === run.parent);
    const bytes = new TextEncoder().encode(fileOf(run, parent));
    files.push({ run, name: fileName(run), bytes, sha256: await sha256(bytes) });
  }
  return files;
}

/**
 * @param {Run[]} runs all of them @param {Run} run
 * @returns {Promise<{name: string, bytes: Uint8Array<ArrayBuffer>}>} its file, as in an export of its tree
 */
export async function exportRun(runs, run) {
  const ancestors = await exportRuns(lineage(runs, run).slice(0, -1));
  return { name: fileName(run), bytes: new TextEncoder().encode(fileOf(run, ancestors.at(-1))) };
}

/** @param {Run} run @param {Exported | undefined} parent @returns {string} */
function fileOf(run, parent) {
  const token = run.request?.forced[run.at] ?? run.trace.steps[run.at]?.token_id;
  const recordedParent = run.trace.head.parent?.trace;
  if (!parent || token === undefined || recordedParent === parent.sha256) return run.trace.file;
  const head = { ...recordOf(run.trace.lines[0] ?? ""), parent: { trace: parent.sha256, step: run.at, token_id: token } };
  return [lineOf(head), ...run.trace.lines.slice(1)].map((line) => `${line}\n`).join("");
}

/** @param {Run} run @returns {string} */
const fileName = (run) =>
  run.request ? `run-${run.id}.jsonl` : `${run.name.replace(/\.gz$/, "").replace(/\.jsonl$/, "")}.jsonl`;
