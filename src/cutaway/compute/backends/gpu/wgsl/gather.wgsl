// Copies the rows whose logits are wanted, so that they are neighbours.
struct Op { x: u32, x_width: u32, out: u32, out_width: u32, width: u32 }
alias Kept = u32;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  if (at.x >= op.width) { return; }
  let row = u32(lists[batch.logit_rows + at.y]);
  floats[op.out + at.y * op.out_width + at.x] = floats[op.x + row * op.x_width + at.x];
}
