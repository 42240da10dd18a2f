// Writes a rotated copy of each head's numbers.
struct Op {
  x: u32, x_width: u32, out: u32, out_width: u32, heads: u32, head_dim: u32,
  angles: u32,  // how many floats the rotations before this one have for each row
  pairs: u32, rotate_half: u32,
}
alias Kept = u32;
@compute @workgroup_size(64) fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let from_ = op.x + at.y * op.x_width + at.x * op.head_dim;
  let to = op.out + at.y * op.out_width + at.x * op.head_dim;
  for (var i = thread; i < op.head_dim - op.pairs; i += 64u) {
    let two = pair(i, op.pairs, op.rotate_half != 0u);
    let turned = rotate(floats[from_ + two.x], floats[from_ + two.y], at.y, op.angles, op.pairs, i);
    floats[to + two.x] = turned.x;
    if (i < op.pairs) { floats[to + two.y] = turned.y; }
  }
}
