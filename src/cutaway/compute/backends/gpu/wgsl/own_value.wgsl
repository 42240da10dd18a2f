// Each head of v times the dot product of that head of a and b, added to y. A workgroup has a head of a row.
struct Op {
  a: u32, a_width: u32, b: u32, b_width: u32, v: u32, v_width: u32, y: u32, y_width: u32, out: u32, out_width: u32, size: u32,
}
alias Kept = u32;
@compute @workgroup_size(64) fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let first = at.x * op.size;
  if (thread < 16u) {
    var sum = 0.0;
    for (var i = first + thread; i < first + op.size; i += 16u) {
      sum = fused(floats[op.a + at.y * op.a_width + i], floats[op.b + at.y * op.b_width + i], sum);
    }
    lanes[thread] = sum;
  }
  sum_lanes(thread);
  for (var i = first + thread; i < first + op.size; i += 64u) {
    floats[op.out + at.y * op.out_width + i] =
        fused(lanes[0], floats[op.v + at.y * op.v_width + i], floats[op.y + at.y * op.y_width + i]);
  }
}
