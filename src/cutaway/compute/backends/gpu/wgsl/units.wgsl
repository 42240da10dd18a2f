// Scales queries and keys to length 1, and divides queries by the square root of KEYS. A workgroup has one query or key of a row.
var<workgroup> lanes: array<f32, 16>;
@compute @workgroup_size(16) fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let x = op.x + at.y * op.x_width + at.x * KEYS;
  var squares = 0.0;
  for (var i = thread; i < KEYS; i += 16u) { squares = fused(floats[x + i], floats[x + i], squares); }
  lanes[thread] = squares;
  workgroupBarrier();
  for (var half = 8u; half > 0u; half /= 2u) {
    if (thread < half) { lanes[thread] = add(lanes[thread], lanes[thread + half]); }
    workgroupBarrier();
  }
  var one = 1.0;
  if (at.x < op.k_heads) { one = div(1.0, root(f32(KEYS))); }
  let factor = div(one, root(add(lanes[0], constant(0x358637bdu))));  // 1e-6
  let to = op.units + (at.y * 2u * op.k_heads + at.x) * KEYS;
  for (var i = thread; i < KEYS; i += 16u) { floats[to + i] = mul(floats[x + i], factor); }
}
