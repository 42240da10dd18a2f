// Computes for each head of a row how much of its state it keeps, and how much it learns (delta net) or how long its step is (Mamba 2).
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  if (at.x >= op.heads) { return; }
  let step_size = softplus(add(floats[op.a + at.y * op.a_width + at.x], vector(op.step_weight + at.x)));
  let to = op.gates + 2u * (at.y * op.heads + at.x);
  floats[to] = exp_nonpositive(mul(vector(op.keep_weight + at.x), step_size));
  if (DELTA) { floats[to + 1u] = times_sigmoid(1.0, floats[op.b + at.y * op.b_width + at.x]); }
  else { floats[to + 1u] = step_size; }
}
