// The most dot products that a device computes: eight chains a thread, in registers.
override STEPS: u32 = 1u;
@group(0) @binding(0) var<storage, read_write> sums: array<i32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  var sum: array<i32, 8>;
  var x = at.x * 2654435761u;
  for (var step = 0u; step < STEPS; step++) {
    for (var i = 0u; i < 8u; i++) { sum[i] = sum[i] ^ dot4I8Packed(x + i, bitcast<u32>(sum[i])); }
    x = x ^ (x << 5u);
  }
  var all = 0;
  for (var i = 0u; i < 8u; i++) { all ^= sum[i]; }
  sums[at.x] = all;
}
