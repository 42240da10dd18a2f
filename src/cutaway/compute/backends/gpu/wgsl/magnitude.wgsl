// The root of the mean of a row's squares, of its numbers less their mean where `centred`. A workgroup has a row.
struct Op { x: u32, x_width: u32, out: u32, out_width: u32, size: u32, centred: u32 }
alias Kept = u32;
var<workgroup> mean: f32;

@compute @workgroup_size(64) fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let x = op.x + at.y * op.x_width;
  if (thread < 16u) {
    var sum = 0.0;
    if (op.centred != 0u) { for (var i = thread; i < op.size; i += 16u) { sum = add(sum, floats[x + i]); } }
    lanes[thread] = sum;
  }
  sum_lanes(thread);
  if (thread == 0u) { mean = div(lanes[0], f32(op.size)); }
  workgroupBarrier();
  if (thread < 16u) {
    var squares = 0.0;
    for (var i = thread; i < op.size; i += 16u) {
      let v = sub(floats[x + i], mean);
      squares = fused(v, v, squares);
    }
    lanes[thread] = squares;
  }
  sum_lanes(thread);
  if (thread == 0u) { floats[op.out + at.y * op.out_width] = root(div(lanes[0], f32(op.size))); }
}
