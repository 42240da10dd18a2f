// Looks up rows of a matrix of floats, by each row's token, position or type.
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  let wanted = row_of(op.list, at.y);
  if (at.x >= op.columns || wanted < op.first || wanted >= op.last) { return; }
  let panel = op.matrix + ((wanted - op.first) >> 4u) * op.panel_words;
  var x = weight(panel, at.x, wanted & 15u);
  if (FLUSHES) { note_hurt(is_denormal(x)); }
  if (op.factor != 0x3f800000u) { x = mul(x, number(op.factor)); }
  floats[op.out + at.y * op.out_width + at.x] = x;
}
