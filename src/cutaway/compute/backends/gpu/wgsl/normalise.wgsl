// Norms groups of numbers by an RMS norm, a layer norm, a limit of length or not at all, and writes floats, quant blocks or both. A workgroup has one
// group of a row.
struct Op {
  x: u32, x_width: u32,
  norm: u32,    // 0: none, 1: RMS norm, 2: layer norm, 3: weighted, and made shorter than a limit, which is eps
  size: u32,    // numbers of a group
  weight: u32, bias: u32, eps: u32,
  apart: u32,   // how far the weights of two groups are from each other
  out: u32, out_width: u32,     // NONE: no floats
  quants: u32, quant_blocks: u32,  // NONE: no quant blocks; how many a row has
  other: u32, other_width: u32, is_second: u32, result: u32, result_width: u32, number: u32,  // see ending.wgsl
}
alias Kept = u32;
var<workgroup> mean: f32;
var<workgroup> factor: f32;

fn normed(x: f32, i: u32, group: u32) -> f32 {
  let at = group * op.apart + i;
  if (op.norm == 1u) { return mul(mul(x, factor), vector(op.weight + at)); }
  if (op.norm == 2u) { return fused(mul(sub(x, mean), factor), vector(op.weight + at), vector(op.bias + at)); }
  if (op.norm == 3u) { return mul(mul(x, vector(op.weight + at)), factor); }
  return x;
}

@compute @workgroup_size(64) fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let x = op.x + at.y * op.x_width + at.x * op.size;
  if (op.norm == 2u) {
    if (thread < 16u) {
      var sum = 0.0;
      for (var i = thread; i < op.size; i += 16u) { sum = add(sum, floats[x + i]); }
      lanes[thread] = sum;
    }
    sum_lanes(thread);
    if (thread == 0u) { mean = div(lanes[0], f32(op.size)); }
    workgroupBarrier();
  }
  if (op.norm != 0u) {
    if (thread < 16u) {
      var squares = 0.0;
      for (var i = thread; i < op.size; i += 16u) {
        var v = floats[x + i];
        if (op.norm == 2u) { v = sub(v, mean); }
        if (op.norm == 3u) { v = mul(v, vector(op.weight + at.x * op.apart + i)); }
        squares = fused(v, v, squares);
      }
      lanes[thread] = squares;
    }
    sum_lanes(thread);
    if (thread == 0u) {
      if (op.norm == 3u) {
        let share = div(number(op.eps), add(root(lanes[0]), constant(0x358637bdu)));  // 1e-6
        factor = select(share, 1.0, share > 1.0);
      } else { factor = div(1.0, root(add(div(lanes[0], f32(op.size)), number(op.eps)))); }
    }
    workgroupBarrier();
  }
  if (op.quants != NONE) {
    for (var b = thread; b < op.size / 32u; b += 64u) {
      for (var i = 0u; i < 32u; i++) { block_of_32[i] = normed(floats[x + b * 32u + i], b * 32u + i, at.x); }
      quantise(op.quants + (at.y * op.quant_blocks + at.x * (op.size / 32u) + b) * 16u);
    }
  }
  if (op.out != NONE) {
    workgroupBarrier();  // the result may be written over the input
    for (var i = thread; i < op.size; i += 64u) { put(at.y, at.x * op.size + i, normed(floats[x + i], i, at.x)); }
  }
}
