/**
 * A model on the reader's GPU: opened, checked against the CPU's bits, and run on the tokens of one text.
 *
 * Knows the recordings that Python wrote (compute/backends/gpu/pages.py); not how a token is drawn from logits.
 */

import { sha256 } from "../../state/sha256.js";
import { findAdapter, isChecked, noteCheck, openDevice } from "./device.js";
import { chooseWay } from "./probe.js";
import { Recording } from "./recording.js";
import { launches, stepNumbers } from "./step.js";
/** @import { Angles, Program } from "./step.js" */
/** @import { Recorded } from "./recording.js" */

/**
 * @typedef {{program: Recorded, data: Uint8Array<ArrayBuffer>, probe: Recorded, probeData: Uint8Array<ArrayBuffer>}} Files
 * @typedef {(use: (bytes: Uint8Array<ArrayBuffer>, at: number) => void) => Promise<void>} EachPart of the file of weights, in order
 * @typedef {(opened: {gpu: string, memory: number, stage: string}) => void} Report how far a GPU is, and how many bytes of its memory the model takes
 */

/** A step that cannot be the GPU's: the same text goes on with the core. */
export class GpuError extends Error {}

export class GpuModel {
  /**
   * Open the GPU and check it. An error says why it is not used.
   * @param {() => Promise<Files>} fetchFiles called where there is a GPU @param {EachPart} eachPart
   * @param {(rotations: unknown[][]) => Angles} anglesOf @param {Report} report @returns {Promise<GpuModel>}
   */
  static async open(fetchFiles, eachPart, anglesOf, report) {
    const adapter = await findAdapter(), { program, data, probe, probeData } = await fetchFiles();
    const sizes = program.buffers.map(([bytes]) => bytes), memory = sizes.reduce((sum, bytes) => sum + bytes, 0);
    const { device, name } = await openDevice(adapter, Math.max(...sizes));
    const tell = (/** @type {string} */ stage) => report({ gpu: name, memory, stage });
    tell("its arithmetic is being checked");
    try {
      const { way, flushes } = await chooseWay(device, probe, probeData);
      const recording = new Recording(device, program, data);
      await recording.prepare(way, flushes, 0, (compiled, all) => tell(`${compiled} of ${all} kernels are compiled`));
      const key = `${name} ${navigator.userAgent} ${await sha256(new TextEncoder().encode(JSON.stringify([program, way, flushes])))}`;
      const model = new GpuModel(recording, { name, way, flushes, key }, anglesOf(program.rotations));
      tell("the model is being copied");
      await model.fill(eachPart);
      await model.check((await isChecked(key)) ? 1 : Infinity, (right, all) => tell(`${right} of ${all} texts had the bits of a processor`));
      return model;
    } catch (error) {
      device.destroy();
      throw error;
    }
  }

  /** @param {Recording} recording @param {{name: string, way: string, flushes: boolean, key: string}} of @param {Angles} angles */
  constructor(recording, { name, way, flushes, key }, angles) {
    this.recording = recording;
    this.program = /** @type {Program & Record<string, any>} */ (/** @type {unknown} */ (recording.document));
    this.name = name;
    this.tier = `webgpu ${way}`;
    this.flushes = flushes;
    this.key = key;
    this.angles = angles;
    this.hasStates = this.program.has_states;
    /** The most tokens of one run. */
    this.rows = this.program.rows;
    /** Why the device was lost. */
    this.lost = "";
    recording.device.lost.then(({ message }) => (this.lost = message || "no reason is given"));
    /** What the device said of a step that it refused. */
    this.fault = "";
    recording.device.onuncapturederror = ({ error }) => (this.fault ||= error.message);
  }

  /** Free the GPU's memory. */
  close() {
    this.recording.device.destroy();
  }

  /** @param {EachPart} eachPart copy the weights into the GPU's buffers, part by part */
  async fill(eachPart) {
    const { weights } = this.program;
    await eachPart((bytes, at) => {
      for (const [buffer, pieces] of weights) {
        for (const [from, to, count] of pieces) {
          const first = Math.max(from, at), end = Math.min(from + count, at + bytes.length);
          if (first < end) this.recording.write(buffer, to + first - from, bytes.subarray(first - at, end - at));
        }
      }
    });
  }

  /**
   * Compute the recorded texts; an error names the first whose logits are not the CPU's.
   * @param {number} [limit] how many of them: the shortest also tells whether there is memory to run at all
   * @param {(right: number, all: number) => void} [progress] called before each text
   */
  async check(limit = Infinity, progress = () => {}) {
    const texts = this.program.texts_to_check.slice(0, limit);
    for (const [right, { tokens, sha256: expected }] of texts.entries()) {
      progress(right, texts.length);
      let logits = new Float32Array();
      for (let first = 0; first < tokens.length; first += this.rows) {
        logits = await this.run(tokens.slice(first, first + this.rows), first);
      }
      if ((await sha256(new Uint8Array(logits.buffer))) === expected) continue;
      await noteCheck(this.key, false);
      throw new Error(`it computes other bits than the CPU in a text of ${tokens.length} tokens`);
    }
    if (limit === Infinity) await noteCheck(this.key, true);
  }

  /**
   * Run tokens of the text from position `first` on, at most as many as the program has rows for.
   * @param {number[]} tokens @param {number} first @returns {Promise<Float32Array<ArrayBuffer>>} the logits after the last one
   */
  async run(tokens, first) {
    const { program, recording } = this, { step, lists, floats, output: [at, bytes] } = program;
    const numbers = stepNumbers(program, tokens, first, this.angles);
    recording.write(step, 0, new Uint8Array(numbers.step.buffer));
    recording.write(lists, 0, new Uint8Array(numbers.lists.buffer));
    if (this.flushes) recording.write(floats, 0, new Uint8Array(4));
    recording.launch(launches(program, tokens.length, first));
    const read = await recording.read([floats, at, bytes], [floats, 0, 4]).catch(() => null);
    if (!read) throw new GpuError(`the GPU ${this.name} was lost (${this.lost || "the browser took it back"})`);
    if (this.fault) throw new GpuError(`the GPU ${this.name} refused a step (${this.fault})`);
    if (this.flushes && new Uint32Array(read.buffer, bytes, 1)[0]) {
      throw new GpuError(`the GPU ${this.name} takes numbers below 1e-38 for 0, and this step has such numbers`);
    }
    return new Float32Array(read.buffer, 0, bytes / 4).slice();
  }
}
