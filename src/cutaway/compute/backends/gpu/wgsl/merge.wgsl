// Merges the chunks of each head of a row, in the order of the chunks, and divides.
alias Kept = u32;
@compute @workgroup_size(64) fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  for (var d = thread; d < op.value_dim; d += 64u) {
    var peak = NOTHING;
    var total = 0.0;
    var sum = 0.0;
    for (var chunk = 0u; chunk < batch.chunks; chunk++) {
      let next = partial_of(at.y, at.x, chunk);
      let next_peak = floats[next];
      if (next_peak == NOTHING) { continue; }
      if (peak == NOTHING) {
        peak = next_peak;
        total = floats[next + 1u];
        sum = floats[next + 2u + d];
        continue;
      }
      let by = factors_of(peak, next_peak);
      total = add(mul(total, by.x), mul(floats[next + 1u], by.y));
      sum = fused(floats[next + 2u + d], by.y, mul(sum, by.x));
      peak = max(peak, next_peak);
    }
    finish(at.y, at.x, d, peak, total, sum);
  }
  if (op.quants != NONE) {
    storageBarrier();
    for (var block = thread; block < op.value_dim / 32u; block += 64u) { quantise_block(at.y, at.x, block); }
  }
}
