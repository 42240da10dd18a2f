// The heads of RWKV-7. A thread has a column of a head's state, of one sequence, and reads the sequence's tokens one after the other.
struct Op {
  v: u32, v_width: u32, r: u32, r_width: u32, keep: u32, keep_width: u32, k: u32, k_width: u32, removed: u32, removed_width: u32,
  loss: u32, loss_width: u32, out: u32, out_width: u32,
  state: u32, state_size: u32,   // where in a state this layer's floats begin; floats of a state
}
alias Kept = f32;
@compute @workgroup_size(16) fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let column = at.x * 16u + thread;
  let head = at.y * KEYS;
  let segment = batch.segments + 3u * at.z;
  let first = u32(lists[segment]);
  let end = first + u32(lists[segment + 1u]);
  let before = lists[segment + 2u];
  let here = op.state + head * KEYS + column;
  var state: array<f32, KEYS>;
  for (var i = 0u; i < KEYS; i++) {
    state[i] = 0.0;
    if (before >= 0) { state[i] = kept[u32(before) * op.state_size + here + i * KEYS]; }
  }
  var stored = 0u;
  while (stored < batch.stored_count && u32(lists[batch.stored + 2u * stored]) < first) { stored += 1u; }
  for (var row = first; row < end; row++) {
    let r = op.r + row * op.r_width + head;
    let keep = op.keep + row * op.keep_width + head;
    let k = op.k + row * op.k_width + head;
    let removed = op.removed + row * op.removed_width + head;
    let loss = op.loss + row * op.loss_width + head;
    let v = floats[op.v + row * op.v_width + head + column];
    var had = 0.0;
    for (var i = 0u; i < KEYS; i++) { had = fused(floats[removed + i], state[i], had); }
    var sum = 0.0;
    for (var i = 0u; i < KEYS; i++) {
      state[i] = fused(-floats[loss + i], had, fused(floats[k + i], v, mul(state[i], floats[keep + i])));
      sum = fused(floats[r + i], state[i], sum);
    }
    floats[op.out + row * op.out_width + head + column] = sum;
    while (stored < batch.stored_count && u32(lists[batch.stored + 2u * stored]) == row) {
      let place = u32(lists[batch.stored + 2u * stored + 1u]);
      for (var i = 0u; i < KEYS; i++) { kept[place * op.state_size + here + i * KEYS] = state[i]; }
      stored += 1u;
    }
  }
}
