// Sums of 16 lanes, which the first 16 threads of a workgroup compute.
var<workgroup> lanes: array<f32, 16>;

// Adds the upper half of the lanes to the lower half, 16 -> 8 -> 4 -> 2 -> 1.
fn sum_lanes(thread: u32) {
  workgroupBarrier();
  for (var half = 8u; half > 0u; half /= 2u) {
    if (thread < half) { lanes[thread] = add(lanes[thread], lanes[thread + half]); }
    workgroupBarrier();
  }
}
