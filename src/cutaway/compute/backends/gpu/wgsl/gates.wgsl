// Computes for each head of a row how much its state keeps, and how much it learns (delta net) or how long its step is (Mamba 2).
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  if (at.x >= op.heads * KEEPS) { return; }
  let step_size = softplus(add(floats[op.a + at.y * op.a_width + at.x], vector(op.step_weight + at.x)));
  let row = op.gates + at.y * op.heads * (KEEPS + 1u);
  floats[row + at.x] = exp_nonpositive(mul(vector(op.keep_weight + at.x), step_size));
  if (at.x >= op.heads) { return; }
  let to = row + op.heads * KEEPS + at.x;
  if (DELTA) { floats[to] = times_sigmoid(number(op.learn_factor), floats[op.b + at.y * op.b_width + at.x]); }
  else { floats[to] = step_size; }
}
