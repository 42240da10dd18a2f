// The whole-number sum of a sub-block: codes of a matrix times codes of activations, whose quant block begins at word x.
fn dot_of(codes_at: u32, x: u32, sub_block: u32, zero_code: i32) -> i32 {
  var sum = 0;
  if (STARTS) { sum = bitcast<i32>(quants[x + minus_at(sub_block)]) << u32(max(OFFSET, 0)); }
  if (SCALE == GROUP) { sum += zero_code * bitcast<i32>(quants[x + minus_at(sub_block)]); }
  if (LIFT > 0) { sum -= LIFT * bitcast<i32>(quants[x + minus_at(sub_block)]); }
  let first = sub_block * (SUB / 4u);
  for (var group = first; group < first + SUB / 4u; group++) { sum += dot4I8Packed(codes(codes_at, group), quants[x + group]); }
  return sum;
}
