// Looks up rows of a matrix of codes, by each row's token, position or type.
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  let column = at.x * 4u;
  let wanted = row_of(op.list, at.y);
  if (column >= op.columns || wanted < op.first || wanted >= op.last) { return; }
  let row = wanted & 15u;
  let panel = op.matrix + ((wanted - op.first) >> 4u) * op.panel_words;
  let block = column >> 5u;
  let sub_block = select((column >> 4u) & 1u, 0u, SUB == 32u);
  let four = codes(block_of(panel, block) + row, (column >> 2u) & 7u);
  let scale = scale_of(panel, block, sub_block, row);
  for (var i = 0u; i < 4u; i++) {
    var code = signed_byte((four >> (8u * i)) & 255u);
    if (STARTS) { code -= 1 << u32(max(OFFSET, 0)); }
    if (SCALE == GROUP) { code -= zero_of(panel, block, row); }
    code += LIFT;
    var x = mul(scale, f32(code));
    if (ADDS_MINIMA) { x = add(x, minimum_of(panel, block, sub_block, row)); }
    if (op.factor != 0x3f800000u) { x = mul(x, number(op.factor)); }
    floats[op.out + at.y * op.out_width + column + i] = x;
  }
}
