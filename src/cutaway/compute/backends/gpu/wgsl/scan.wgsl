// Reads the tokens of a sequence one after the other. Each column of values is one chain over the keys, in the order of the keys.
@compute @workgroup_size(16) fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let column = at.x * 16u + thread;
  let head = at.y;
  let segment = batch.segments + 3u * at.z;
  let first = u32(lists[segment]);
  let end = first + u32(lists[segment + 1u]);
  let before = lists[segment + 2u];
  let here = op.state + head * KEYS * op.values + column;
  var state: array<f32, KEYS>;
  for (var i = 0u; i < KEYS; i++) {
    state[i] = 0.0;
    if (before >= 0) { state[i] = kept[u32(before) * op.state_size + here + i * op.values]; }
  }
  var stored = 0u;
  while (stored < batch.stored_count && u32(lists[batch.stored + 2u * stored]) < first) { stored += 1u; }
  var k_head = head / (op.heads / op.k_heads);
  if (DELTA && op.grouped == 0u) { k_head = head % op.k_heads; }
  for (var row = first; row < end; row++) {
    let gates = op.gates + row * op.heads * (KEEPS + 1u);
    var keep = floats[gates + head * KEEPS];
    let learn = floats[gates + op.heads * KEEPS + head];
    let x = op.x + row * op.x_width;
    var sum = 0.0;
    if (DELTA) {
      let q = op.units + (row * 2u * op.k_heads + k_head) * KEYS;
      let k = q + op.k_heads * KEYS;
      var had = 0.0;
      for (var i = 0u; i < KEYS; i++) {
        if (KEEPS > 1u) { keep = floats[gates + head * KEEPS + i]; }
        state[i] = mul(state[i], keep);
        had = fused(floats[k + i], state[i], had);
      }
      let change = mul(sub(floats[x + 2u * op.k_heads * KEYS + head * op.values + column], had), learn);
      for (var i = 0u; i < KEYS; i++) {
        state[i] = fused(floats[k + i], change, state[i]);
        sum = fused(floats[q + i], state[i], sum);
      }
    } else if (OF_COLUMNS) {
      let v = floats[x + column];
      let step_size = softplus(floats[op.a + row * op.a_width + column]);
      let added = mul(v, step_size);
      for (var i = 0u; i < KEYS; i++) {
        let kept_share = exp_nonpositive(mul(vector(op.keep_weight + i * op.values + column), step_size));
        state[i] = fused(floats[op.b + row * op.b_width + i], added, mul(state[i], kept_share));
        sum = fused(floats[op.q + row * op.q_width + i], state[i], sum);
      }
      sum = fused(vector(op.skip_weight + column), v, sum);
    } else {
      let v = floats[x + head * op.values + column];
      let k = x + op.heads * op.values + k_head * KEYS;
      let q = k + op.k_heads * KEYS;
      let added = mul(v, learn);
      for (var i = 0u; i < KEYS; i++) {
        state[i] = fused(floats[k + i], added, mul(state[i], keep));
        sum = fused(floats[q + i], state[i], sum);
      }
      sum = fused(vector(op.skip_weight + head), v, sum);
    }
    floats[op.out + row * op.out_width + head * op.values + column] = sum;
    while (stored < batch.stored_count && u32(lists[batch.stored + 2u * stored]) == row) {
      let place = u32(lists[batch.stored + 2u * stored + 1u]);
      for (var i = 0u; i < KEYS; i++) { kept[place * op.state_size + here + i * op.values] = state[i]; }
      stored += 1u;
    }
  }
}
