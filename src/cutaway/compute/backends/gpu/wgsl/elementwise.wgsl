// An elementwise op: elementwise(x, y, number) has the expression of its kind in native/elementwise.def.
struct Op {
  a: u32, a_width: u32, b: u32, b_width: u32, out: u32, out_width: u32, width: u32,
  number: u32,
  spread: u32,  // whether a has one number for all of a row
}
alias Kept = u32;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  if (at.x >= op.width) { return; }
  let x = floats[op.a + at.y * op.a_width + select(at.x, 0u, op.spread != 0u)];
  let y = floats[op.b + at.y * op.b_width + at.x];
  floats[op.out + at.y * op.out_width + at.x] = elementwise(x, y, bitcast<f32>(op.number));
}
