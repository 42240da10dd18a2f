// Adds up the results of a row's experts, each times its weight, in the order of rank.
struct Op {
  x: u32, out: u32, out_width: u32, width: u32, used: u32, choices: u32,
  weighs_input: u32,  // whether the weights were applied to what the experts read
  other: u32, other_width: u32, is_second: u32, result: u32, result_width: u32, number: u32,  // see ending.wgsl
}
alias Kept = u32;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  if (at.x >= op.width) { return; }
  var sum = 0.0;
  for (var rank = 0u; rank < op.used; rank++) {
    let item = at.y * op.used + rank;
    var weight = 1.0;
    if (op.weighs_input == 0u) { weight = floats[op.choices + 2u * item + 1u]; }
    let y = mul(weight, floats[op.x + item * op.width + at.x]);
    if (rank == 0u) { sum = y; } else { sum = add(sum, y); }
  }
  put(at.y, at.x, sum);
}
