// What a kernel does with a number that it computed. Where it ENDS in an elementwise op, it also computes that op.
fn put(row: u32, column: u32, x: f32) {
  floats[op.out + row * op.out_width + column] = x;
  if (!ENDS) { return; }
  var result: f32;
  if (op.other == NONE) { result = elementwise(x, x, number(op.number)); }
  else {
    let other = floats[op.other + row * op.other_width + column];
    if (op.is_second != 0u) { result = elementwise(other, x, number(op.number)); } else { result = elementwise(x, other, number(op.number)); }
  }
  floats[op.result + row * op.result_width + column] = result;
}
