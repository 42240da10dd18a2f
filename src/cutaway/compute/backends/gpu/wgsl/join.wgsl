// Joins rows of a and b group by group: the numbers of a group of a, then those of a group of b.
struct Op {
  a: u32, a_width: u32, a_size: u32, b: u32, b_width: u32, b_size: u32,  // size: how many numbers a group has
  out: u32, out_width: u32, width: u32,
}
alias Kept = u32;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  if (at.x >= op.width) { return; }
  let size = op.a_size + op.b_size;
  let group = at.x / size;
  let within = at.x % size;
  var x = 0.0;
  if (within < op.a_size) { x = floats[op.a + at.y * op.a_width + group * op.a_size + within]; }
  else { x = floats[op.b + at.y * op.b_width + group * op.b_size + within - op.a_size]; }
  floats[op.out + at.y * op.out_width + at.x] = x;
}
