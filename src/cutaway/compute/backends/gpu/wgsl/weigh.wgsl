// Each number times a weight.
struct Op { x: u32, x_width: u32, weight: u32, out: u32, out_width: u32, width: u32 }
alias Kept = u32;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  if (at.x >= op.width) { return; }
  floats[op.out + at.y * op.out_width + at.x] = mul(floats[op.x + at.y * op.x_width + at.x], vector(op.weight + at.x));
}
