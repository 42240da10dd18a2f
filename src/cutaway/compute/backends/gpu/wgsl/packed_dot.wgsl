// The function of WGSL, for browsers that do not have it.
fn dot4I8Packed(a: u32, b: u32) -> i32 {
  var sum = 0;
  for (var i = 0u; i < 4u; i++) { sum += extractBits(bitcast<i32>(a), 8u * i, 8u) * extractBits(bitcast<i32>(b), 8u * i, 8u); }
  return sum;
}
