/**
 * Whether a device computes single operations with the bits of the CPU: the probe of compute/backends/gpu/probe.py, recorded
 * with the right results. Knows which results must be right, not what a device is for.
 */

import { Recording } from "./recording.js";
/** @import { Recorded } from "./recording.js" */

const ASKED_WITH_DENORMAL = 2; // of the recording's kinds; 0: the triple is not in the operation's domain
const SIGN = 0x7fffffff; // all bits but the sign

/**
 * @typedef {{name: string, asked: number, wrong: number, normal: number}} Finding
 * How many results of an operation were asked for and wrong, and how many of the wrong ones have no denormal.
 */

/** @param {GPUDevice} device @param {Recorded} recorded @param {Uint8Array} data @param {string} way @returns {Promise<Finding[]>} */
export async function examine(device, recorded, data, way) {
  const recording = new Recording(device, recorded, data);
  await recording.prepare(way, false);
  const findings = [];
  for (const step of recorded.steps ?? []) {
    recording.run(step);
    const results = words(await recording.read(step.read));
    findings.push(compare(step.name, results, words(recording.bytes(step.right)), recording.bytes(step.kinds), step.ignores_sign));
  }
  recording.destroy();
  return findings;
}

/**
 * @param {string} name @param {Uint32Array} results @param {Uint32Array} right @param {Uint8Array} kinds
 * @param {boolean} ignoresSign of 0 @returns {Finding}
 */
export function compare(name, results, right, kinds, ignoresSign) {
  const finding = { name, asked: 0, wrong: 0, normal: 0 };
  results.forEach((result, i) => {
    const expected = right[i] ?? 0;
    if (!kinds[i]) return;
    finding.asked += 1;
    if (result === expected || (ignoresSign && !((result | expected) & SIGN))) return;
    finding.wrong += 1;
    if (kinds[i] !== ASKED_WITH_DENORMAL) finding.normal += 1;
  });
  return finding;
}

/**
 * @param {GPUDevice} device @param {Recorded} recorded @param {Uint8Array} data
 * @returns {Promise<{way: string, flushes: boolean}>} the first way that rounds a multiply-add once, and whether denormals are taken for 0
 */
export async function chooseWay(device, recorded, data) {
  let bad = "";
  for (const way of Object.keys(recorded.fused)) {
    try {
      const findings = await examine(device, recorded, data, way);
      const wrong = findings.filter(({ normal }) => normal).map(({ name }) => name).join(", ");
      if (!wrong) return { way, flushes: findings.some((finding) => finding.wrong) };
      bad = `it computes other bits than the CPU in ${wrong}`;
    } catch (error) {
      bad = /** @type {Error} */ (error).message; // a driver need not have each way
    }
  }
  throw new Error(bad);
}

/** @param {Uint8Array} bytes */
const words = (bytes) => new Uint32Array(bytes.slice().buffer);
