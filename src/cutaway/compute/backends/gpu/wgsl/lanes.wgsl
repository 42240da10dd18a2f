// Sums of 16 lanes, by the first 16 threads of a workgroup.
var<workgroup> lanes: array<f32, 16>;

// The 16 lanes added up, the upper half to the lower, 16 -> 8 -> 4 -> 2 -> 1.
fn sum_lanes(thread: u32) {
  workgroupBarrier();
  for (var half = 8u; half > 0u; half /= 2u) {
    if (thread < half) { lanes[thread] = add(lanes[thread], lanes[thread + half]); }
    workgroupBarrier();
  }
}
