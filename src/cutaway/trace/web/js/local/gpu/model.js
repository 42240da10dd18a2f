/**
 * A model on the reader's GPU: opened, checked against the CPU's bits, and run on the tokens of one text.
 *
 * Knows the recordings that Python wrote (compute/backends/gpu/pages.py); not how a token is drawn from logits.
 */

import { sha256 } from "../../state/sha256.js";
import { countChecked, Declined, findAdapter, limitTime, noteChecked, openDevice } from "./device.js";
import { chooseWay } from "./probe.js";
import { Recording } from "./recording.js";
import { launches, stepNumbers } from "./step.js";
/** @import { Angles, Program } from "./step.js" */
/** @import { Recorded } from "./recording.js" */

/**
 * @typedef {{program: Recorded, data: Uint8Array<ArrayBuffer>, probe: Recorded, probeData: Uint8Array<ArrayBuffer>}} Files
 * @typedef {(use: (bytes: Uint8Array<ArrayBuffer>, at: number) => void) => Promise<void>} EachPart of the file of weights, in order
 * @typedef {(opened: {gpu: string, memory: number, stage: string}) => void} Report how far a GPU is, and how many bytes of its memory the model takes
 * @typedef {{tokens: number[], sha256: string}} Text whose logits after the last token have this SHA-256
 * @typedef {{declines: boolean, seconds: number}} Patience
 * declines: whether a slow GPU is left for the processor; seconds: for the texts that check it, of which the first is always computed
 */

const COMPILE_SECONDS = 20;
const PROCESSOR = 1e9; // bytes of weights that WebAssembly reads in a second: a low guess, so that only a GPU that is clearly slower is declined
const FAST = 0.05; // seconds of a token: nobody reads faster

/** A step that the GPU failed to compute: this text and later ones are the core's. */
export class GpuError extends Error {}

export class GpuModel {
  /**
   * Open the GPU and check it. An error says why it is not used.
   * @param {() => Promise<Files>} fetchFiles called where there is a GPU @param {EachPart} eachPart
   * @param {(rotations: unknown[][]) => Angles} anglesOf @param {Patience} patience @param {Report} report @returns {Promise<GpuModel>}
   */
  static async open(fetchFiles, eachPart, anglesOf, patience, report) {
    const { declines, seconds } = patience, adapter = await findAdapter(declines), files = await fetchFiles();
    const sizes = files.program.buffers.map(([bytes]) => bytes), memory = sizes.reduce((sum, bytes) => sum + bytes, 0);
    const opened = await openDevice(adapter, Math.max(...sizes)), { device, name } = opened;
    let isOpen = true, stage = "";
    const tell = (/** @type {string} */ now, limit = "") => isOpen && report({ gpu: name, memory, stage: (stage = now) + limit });
    const late = () => `the GPU ${name} was not ready after ${COMPILE_SECONDS} s (${stage})`;
    tell("its arithmetic is being checked");
    try {
      const compiling = GpuModel.compile(opened, files, anglesOf, (compiled, all) =>
        tell(`${compiled} of ${all} kernels are compiled`, declines ? `, in at most ${COMPILE_SECONDS} s` : ""));
      const model = await limitTime(compiling, declines ? COMPILE_SECONDS : Infinity, late);
      tell("the model is being copied");
      await model.fill(eachPart);
      await model.check(patience, (checked) => tell(checked, `, in about ${seconds} s`));
      return model;
    } catch (error) {
      isOpen = false;
      device.destroy();
      throw error;
    }
  }

  /**
   * @param {import("./device.js").OpenDevice} opened @param {Files} files @param {(rotations: unknown[][]) => Angles} anglesOf
   * @param {(compiled: number, all: number) => void} progress of kernels @returns {Promise<GpuModel>} one without weights
   */
  static async compile({ device, name }, { program, data, probe, probeData }, anglesOf, progress) {
    const { way, flushes } = await chooseWay(device, probe, probeData), recording = new Recording(device, program, data);
    await recording.prepare(way, flushes, 0, progress);
    const key = `${name} ${navigator.userAgent} ${await sha256(new TextEncoder().encode(JSON.stringify([program, way, flushes])))}`;
    return new GpuModel(recording, { name, way, flushes, key }, anglesOf(program.rotations));
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
    /** How many of the texts had the right bits here, now or at an earlier visit. */
    this.checked = 0;
    /** Why the device was lost. */
    this.lost = "";
    recording.device.lost.then(({ message }) => (this.lost = message || "no reason is given"));
    /** What the device said of a step that it refused. */
    this.fault = "";
    recording.device.onuncapturederror = ({ error }) => (this.fault ||= error.message);
  }

  /** How many texts there are. */
  get texts() {
    return this.program.texts_to_check.length;
  }

  /** The most tokens of one run: of a text that was not computed here, other kernels would run. */
  get rows() {
    const { texts_to_check: texts, rows, few_rows: few } = this.program, longest = texts[this.checked - 1]?.tokens.length ?? 0;
    return this.checked === this.texts || longest > few ? rows : longest;
  }

  /** The most tokens of a text whose attention was checked: longer ones are attended to in chunks. */
  get longest() {
    return this.checked < this.texts ? this.program.chunk : Infinity;
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
   * Compute the shortest of the recorded texts, which also tells whether there is memory to run at all, and how fast this is; then those
   * that were never computed here, while there is time. An error names the first whose logits are not the CPU's.
   * @param {Patience} patience @param {(stage: string) => void} progress called before each text
   */
  async check({ declines, seconds }, progress) {
    const began = performance.now(), passed = () => (performance.now() - began) / 1e3;
    const /** @type {[Text, ...Text[]]} */ [shortest] = this.program.texts_to_check;
    const tell = (/** @type {number} */ right) => progress(`${right} of ${this.texts} texts had the bits of a processor`);
    tell(0);
    await limitTime(this.compare(shortest), declines ? seconds : Infinity, () => `the GPU ${this.name} takes more than ${seconds} s for a token`);
    let perToken = passed();
    if (declines) await this.compareWithProcessor(shortest);
    this.checked = Math.max(1, await countChecked(this.key));
    for (const text of this.program.texts_to_check.slice(this.checked)) {
      const before = passed();
      if (before + perToken * text.tokens.length > seconds) break;
      tell(this.checked);
      await this.compare(text);
      perToken = (passed() - before) / text.tokens.length;
      this.checked += 1;
    }
    await noteChecked(this.key, this.checked);
  }

  /** @param {(stage: string) => void} progress compute all texts, whatever was checked before */
  async checkAll(progress) {
    await noteChecked(this.key, 0);
    await this.check({ declines: false, seconds: Infinity }, progress);
  }

  /** @param {Text} text compute it; an error says that its logits are not the CPU's */
  async compare({ tokens, sha256: expected }) {
    const { rows } = this.program;
    let logits = new Float32Array();
    for (let first = 0; first < tokens.length; first += rows) logits = await this.run(tokens.slice(first, first + rows), first);
    if ((await sha256(new Uint8Array(logits.buffer))) === expected) return;
    await noteChecked(this.key, 0);
    throw new Error(`it computes other bits than the CPU in a text of ${tokens.length} tokens`);
  }

  /** @param {Text} text of one token, which was computed before: its time is that of a token */
  async compareWithProcessor(text) {
    const began = performance.now();
    await this.compare(text);
    const seconds = (performance.now() - began) / 1e3;
    if (seconds > Math.max(FAST, this.weightBytes / PROCESSOR)) throw new Declined(`the GPU ${this.name} takes ${seconds.toFixed(2)} s for a token, longer than WebAssembly`);
  }

  /** Bytes of all matrices. */
  get weightBytes() {
    const weights = /** @type {[buffer: number, pieces: number[][]][]} */ (this.program.weights);
    return weights.flatMap(([, pieces]) => pieces).reduce((sum, [, , bytes = 0]) => sum + bytes, 0);
  }

  /**
   * Run tokens of the text from position `first` on, at most `rows` of a text of at most `longest`.
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
