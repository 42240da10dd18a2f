// Writes a block of 32 activations as 8-bit codes and their step; see ActBlock in native/formats.h.
var<private> block_of_32: array<f32, 32>;

fn quantise(to: u32) {
  var peak = 0.0;
  for (var i = 0u; i < 32u; i++) { peak = max(peak, abs(block_of_32[i])); }
  let step_size = div(peak, 127.0);
  var inverse = 0.0;
  if (peak > constant(0x03aa2425u)) { inverse = div(127.0, peak); }  // 1e-36
  var sums = vec2<i32>(0);
  for (var group = 0u; group < 8u; group++) {
    var word = 0u;
    for (var i = 0u; i < 4u; i++) {
      let code = i32(round(mul(block_of_32[4u * group + i], inverse)));
      sums[group >> 2u] += code;
      word |= (bitcast<u32>(code) & 255u) << (8u * i);
    }
    quants[to + group] = word;
  }
  let all = sums.x + sums.y;
  quants[to + 8u] = bitcast<u32>(step_size);
  quants[to + 9u] = bitcast<u32>(mul(step_size, f32(all)));
  quants[to + 10u] = bitcast<u32>(mul(step_size, f32(sums.x)));
  quants[to + 11u] = bitcast<u32>(mul(step_size, f32(sums.y)));
  quants[to + 12u] = bitcast<u32>(-all);
  quants[to + 13u] = bitcast<u32>(-sums.x);
  quants[to + 14u] = bitcast<u32>(-sums.y);
}
