/**
 * A recording of kernels on a WebGPU device: its buffers, bind groups and pipelines (compute/backends/gpu/record.py says what
 * a recording has).
 *
 * Knows no model, and no step: who uses it says what is written, launched and read.
 */

const OP_BYTES = 256;
/** What each binding of common.wgsl is. */
const KINDS = /** @type {const} */ ([
  "uniform", "uniform", "read-only-storage", "storage", "storage", "read-only-storage", "read-only-storage", "storage",
]);

/**
 * @typedef {[first: number, bytes: number]} Place in the recording's file
 * @typedef {[pipeline: number, group: number, op: number, x: number, y: number, z: number]} Launch
 * @typedef {[buffer: number, at: number, bytes: number]} Range of a buffer
 * @typedef {{writes: number[][], launches: Launch[], read: Range} & Record<string, any>} Step
 * @typedef {{fused: Record<string, string>, packed_dot: string, texts: string[], pipelines: [string, number[]][], buffers: [number, boolean, Place | null][],
 *   groups: number[][], steps?: Step[]} & Record<string, any>} Recorded
 */

export class Recording {
  /** @param {GPUDevice} device @param {Recorded} recorded @param {Uint8Array} data the recording's file */
  constructor(device, recorded, data) {
    this.device = device;
    this.document = recorded;
    this.data = data;
    /** @type {GPUBuffer[]} */
    this.buffers = [];
    /** @type {GPUBindGroup[]} */
    this.groups = [];
    /** @type {GPUComputePipeline[]} */
    this.pipelines = [];
  }

  /**
   * @param {string} way to compute a multiply-add, one of the recording's @param {boolean} flushes whether the device takes denormals for 0
   * @param {number} [fill] a word that fills the buffers without a first content
   * @param {(compiled: number, all: number) => void} [progress] called once a kernel is compiled
   */
  async prepare(way, flushes, fill = 0, progress = () => {}) {
    const { device, document: { buffers, groups, pipelines } } = this;
    let compiled = 0;
    const layout = device.createBindGroupLayout({ entries: KINDS.map((type, binding) => ({
      binding, visibility: GPUShaderStage.COMPUTE, buffer: { type, hasDynamicOffset: binding === 1 },
    })) });
    const pipelineLayout = device.createPipelineLayout({ bindGroupLayouts: [layout] });
    this.pipelines = await Promise.all(pipelines.map(async ([name, pieces]) => {
      const module = device.createShaderModule({ code: this.text(pieces, way, flushes) });
      const refusal = (await module.getCompilationInfo()).messages.find(({ type }) => type === "error");
      if (refusal) throw new Error(`its driver cannot compile ${name}: ${refusal.message}`);
      const pipeline = await device.createComputePipelineAsync({ layout: pipelineLayout, compute: { module, entryPoint: "main" } });
      progress((compiled += 1), pipelines.length);
      return pipeline;
    }));
    device.pushErrorScope("out-of-memory");
    device.pushErrorScope("validation");
    this.buffers = buffers.map(([size, isUniform, content]) => {
      const usage = (isUniform ? GPUBufferUsage.UNIFORM : GPUBufferUsage.STORAGE) | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
      const buffer = device.createBuffer({ size, usage });
      if (content) device.queue.writeBuffer(buffer, 0, this.bytes(content));
      else if (fill) device.queue.writeBuffer(buffer, 0, new Uint32Array(size >> 2).fill(fill));
      return buffer;
    });
    this.groups = groups.map((group) => device.createBindGroup({ layout, entries: group.map((index, binding) => {
      const buffer = /** @type {GPUBuffer} */ (this.buffers[index]);
      return { binding, resource: { buffer, offset: 0, size: binding === 1 ? OP_BYTES : buffer.size } };
    }) }));
    const [invalid, full] = [await device.popErrorScope(), await device.popErrorScope()], failure = full ?? invalid;
    if (failure) throw new Error(`it has no room for the model: ${failure.message}`);
  }

  /** @param {number[]} pieces @param {string} way @param {boolean} flushes @returns {string} a kernel's text */
  text(pieces, way, flushes) {
    const { texts, fused, packed_dot } = this.document;
    const hasDot = navigator.gpu.wgslLanguageFeatures?.has("packed_4x8_integer_dot_product");
    return [`const FLUSHES = ${flushes};\n`, hasDot ? "" : packed_dot, ...pieces.map((piece) => (piece < 0 ? fused[way] : texts[piece]))].join("");
  }

  /** @param {Place} place @returns {Uint8Array<ArrayBuffer>} */
  bytes([first, bytes]) {
    return /** @type {Uint8Array<ArrayBuffer>} */ (this.data.subarray(first, first + bytes));
  }

  /** @param {number} buffer @param {number} at @param {Uint8Array<ArrayBuffer>} bytes */
  write(buffer, at, bytes) {
    this.device.queue.writeBuffer(/** @type {GPUBuffer} */ (this.buffers[buffer]), at, bytes);
  }

  /** @param {Step} step write what a recorded step writes, and launch its kernels, or others @param {Launch[]} [launches] */
  run(step, launches = step.launches) {
    for (const [buffer, at, first, bytes] of /** @type {[number, number, number, number][]} */ (step.writes)) {
      this.write(buffer, at, this.bytes([first, bytes]));
    }
    this.launch(launches);
  }

  /** @param {Iterable<Launch>} launches */
  launch(launches) {
    const encoder = this.device.createCommandEncoder(), compute = encoder.beginComputePass();
    for (const [pipeline, group, op, x, y, z] of launches) {
      compute.setPipeline(/** @type {GPUComputePipeline} */ (this.pipelines[pipeline]));
      compute.setBindGroup(0, /** @type {GPUBindGroup} */ (this.groups[group]), [OP_BYTES * op]);
      compute.dispatchWorkgroups(x, y, z);
    }
    compute.end();
    this.device.queue.submit([encoder.finish()]);
  }

  /** @param {Range[]} ranges @returns {Promise<Uint8Array<ArrayBuffer>>} their bytes, one after the other, once all launches are done */
  async read(...ranges) {
    const size = ranges.reduce((sum, [, , bytes]) => sum + bytes, 0);
    const copy = this.device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    const encoder = this.device.createCommandEncoder();
    let to = 0;
    for (const [buffer, at, bytes] of ranges) {
      encoder.copyBufferToBuffer(/** @type {GPUBuffer} */ (this.buffers[buffer]), at, copy, to, bytes);
      to += bytes;
    }
    this.device.queue.submit([encoder.finish()]);
    await copy.mapAsync(GPUMapMode.READ);
    const bytes = new Uint8Array(copy.getMappedRange()).slice();
    copy.destroy();
    return bytes;
  }

  /** Free the memory on the device. */
  destroy() {
    for (const buffer of this.buffers) buffer.destroy();
  }
}
