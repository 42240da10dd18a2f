// Sums each number, weighted, over the tokens around it, of which the batch has all. Beyond the ends of a text all numbers are 0.
struct Op {
  x: u32, x_width: u32, out: u32, out_width: u32, width: u32, taps: u32,
  weight: u32, bias: u32,  // (taps, width), the earliest token's first; NONE: no bias
}
alias Kept = u32;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  if (at.x >= op.width) { return; }
  let segment = batch.segments + 3u * u32(lists[batch.segment + at.y]);
  let first = u32(lists[segment]);
  let end = first + u32(lists[segment + 1u]);
  var sum = 0.0;
  if (op.bias != NONE) { sum = vector(op.bias + at.x); }
  for (var t = 0u; t < op.taps; t++) {
    let row = at.y + t - op.taps / 2u;  // wraps around below 0, and is then beyond the end
    var x = 0.0;
    if (row >= first && row < end) { x = floats[op.x + row * op.x_width + at.x]; }
    sum = fused(x, vector(op.weight + t * op.width + at.x), sum);
  }
  floats[op.out + at.y * op.out_width + at.x] = sum;
}
