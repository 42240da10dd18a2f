// Replays a recording with WebGPU; cutaway's record.py says what it has. The same is gpu_replay.py without a browser.

const OP_BYTES = 256;
const KINDS = /** @type {const} */ ([
  "uniform", "uniform", "read-only-storage", "storage", "storage", "read-only-storage", "read-only-storage", "storage",
]);

/** A recording's buffers, bind groups and pipelines on a device. */
export class Replay {
  /** name: of the recording, without a suffix; fused: the way to compute a multiply-add. */
  static async load(device, name, fused, fill = 0) {
    const [document_, data] = await Promise.all([
      fetch(`${name}.json`).then((answer) => answer.json()),
      fetch(`${name}.bin`).then((answer) => answer.arrayBuffer()),
    ]);
    const replay = new Replay(device, document_, new Uint8Array(data));
    await replay.prepare(fused, fill);
    return replay;
  }

  constructor(device, document_, data) {
    this.device = device;
    this.document = document_;
    this.data = data;
    this.steps = document_.steps;
  }

  async prepare(fused, fill) {
    const { device, document: { pipelines, buffers, groups } } = this;
    const entries = KINDS.map((type, binding) => ({
      binding, visibility: GPUShaderStage.COMPUTE, buffer: { type, hasDynamicOffset: binding === 1 },
    }));
    const layout = device.createBindGroupLayout({ entries });
    const pipelineLayout = device.createPipelineLayout({ bindGroupLayouts: [layout] });
    this.pipelines = await Promise.all(pipelines.map(([, before, after]) => device.createComputePipelineAsync({
      layout: pipelineLayout,
      compute: { module: device.createShaderModule({ code: before + this.document.fused[fused] + after }), entryPoint: "main" },
    })));
    this.buffers = buffers.map(([size, isUniform, content]) => {
      const usage = (isUniform ? GPUBufferUsage.UNIFORM : GPUBufferUsage.STORAGE) | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
      const buffer = device.createBuffer({ size, usage });
      if (content) device.queue.writeBuffer(buffer, 0, this.bytes(content));
      else if (fill) device.queue.writeBuffer(buffer, 0, new Uint32Array(size >> 2).fill(fill));
      return buffer;
    });
    this.groups = groups.map((group) => device.createBindGroup({
      layout,
      entries: group.map((index, binding) => ({
        binding, resource: { buffer: this.buffers[index], offset: 0, size: binding === 1 ? OP_BYTES : this.buffers[index].size },
      })),
    }));
  }

  /** Bytes of the recording's file. */
  bytes([first, nbytes]) {
    return this.data.subarray(first, first + nbytes);
  }

  /** Writes what a step writes, and submits its launches, or others. */
  run(step, launches = step.launches) {
    for (const [buffer, at, ...place] of step.writes) this.device.queue.writeBuffer(this.buffers[buffer], at, this.bytes(place));
    const encoder = this.device.createCommandEncoder();
    const compute = encoder.beginComputePass();
    for (const [pipeline, group, op, ...grid] of launches) {
      compute.setPipeline(this.pipelines[pipeline]);
      compute.setBindGroup(0, this.groups[group], [OP_BYTES * op]);
      compute.dispatchWorkgroups(...grid);
    }
    compute.end();
    this.device.queue.submit([encoder.finish()]);
  }

  /** Waits; what is read after a step, or only the first bytes of it. */
  async read(step, most = Infinity) {
    const [index, at, nbytes] = step.read;
    const size = Math.min(nbytes, most);
    const copy = this.device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    const encoder = this.device.createCommandEncoder();
    encoder.copyBufferToBuffer(this.buffers[index], at, copy, 0, size);
    this.device.queue.submit([encoder.finish()]);
    await copy.mapAsync(GPUMapMode.READ);
    const bytes = new Uint8Array(copy.getMappedRange()).slice();
    copy.destroy();
    return bytes;
  }
}
