// Turns each group of numbers into shares, by their exponentials. A workgroup has one group of a row.
struct Op { x: u32, x_width: u32, out: u32, out_width: u32, size: u32 }
alias Kept = u32;
var<workgroup> peak: f32;

@compute @workgroup_size(64) fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let x = op.x + at.y * op.x_width + at.x * op.size;
  let out = op.out + at.y * op.out_width + at.x * op.size;
  if (thread == 0u) {
    peak = floats[x];
    for (var i = 1u; i < op.size; i++) { peak = max(peak, floats[x + i]); }
  }
  workgroupBarrier();
  if (thread < 16u) {
    var sum = 0.0;
    for (var i = thread; i < op.size; i += 16u) {
      let e = exp_nonpositive(sub(floats[x + i], peak));
      floats[out + i] = e;
      sum = add(sum, e);
    }
    lanes[thread] = sum;
  }
  sum_lanes(thread);
  if (thread < 16u) {
    for (var i = thread; i < op.size; i += 16u) { floats[out + i] = div(floats[out + i], lanes[0]); }
  }
}
