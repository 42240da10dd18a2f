// Rows of a matrix of floats, by what the batch says of each row.
struct Op {
  list: u32,  // 0: tokens, 1: positions, 2: types
  matrix: u32, panel_words: u32, columns: u32, factor: u32,
  first: u32, last: u32,  // of the matrix's rows, those in this piece of it
  out: u32, out_width: u32,
}
alias Kept = u32;
fn row_of(list: u32, row: u32) -> u32 {
  return u32(lists[select(select(batch.types, batch.positions, list == 1u), batch.tokens, list == 0u) + row]);
}
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  let wanted = row_of(op.list, at.y);
  if (at.x >= op.columns || wanted < op.first || wanted >= op.last) { return; }
  let panel = op.matrix + ((wanted - op.first) >> 4u) * op.panel_words;
  var x = weight(panel, at.x, wanted & 15u);
  if (op.factor != 0x3f800000u) { x = mul(x, number(op.factor)); }
  floats[op.out + at.y * op.out_width + at.x] = x;
}
