// Floats of 64 bits, (low, high), computed with whole numbers. Each result is rounded once, to the nearest, ties to even. There are no
// infinities, no NaN and no denormals: a result that would be a denormal is 0.
alias Double = vec2<u32>;
const ZERO = Double(0u, 0u);
const ONE = Double(0u, 0x3ff00000u);

fn shift_right_sticky64(v: Double, by: u32) -> Double {
  if (by == 0u) { return v; }
  if (by >= 64u) { return Double(select(0u, 1u, (v.x | v.y) != 0u), 0u); }
  if (by >= 32u) {
    let lost = v.x | select(0u, v.y << (64u - by), by > 32u);
    return Double((v.y >> (by - 32u)) | select(0u, 1u, lost != 0u), 0u);
  }
  return Double((v.x >> by) | (v.y << (32u - by)) | select(0u, 1u, (v.x << (32u - by)) != 0u), v.y >> by);
}
fn shift_left64(v: Double, by: u32) -> Double {
  if (by == 0u) { return v; }
  if (by >= 32u) { return Double(0u, v.x << (by - 32u)); }
  return Double(v.x << by, (v.y << by) | (v.x >> (32u - by)));
}
fn leading_zeros64(v: Double) -> u32 { return select(countLeadingZeros(v.y), 32u + countLeadingZeros(v.x), v.y == 0u); }
fn less64(a: Double, b: Double) -> bool { return a.y < b.y || (a.y == b.y && a.x < b.x); }
fn add64(a: Double, b: Double) -> Double {
  let low = a.x + b.x;
  return Double(low, a.y + b.y + select(0u, 1u, low < a.x));
}
fn sub64(a: Double, b: Double) -> Double { return Double(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x)); }
fn product32(a: u32, b: u32) -> Double {
  let low = (a & 0xffffu) * (b & 0xffffu);
  let middle = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
  let other = (a & 0xffffu) * (b >> 16u) + (middle & 0xffffu);
  return Double((other << 16u) | (low & 0xffffu), (a >> 16u) * (b >> 16u) + (middle >> 16u) + (other >> 16u));
}

fn exponent_of(x: Double) -> i32 { return i32((x.y >> 20u) & 2047u); }
fn mantissa_of(x: Double) -> Double { return Double(x.x, (x.y & 0xfffffu) | 0x100000u); }
// mantissa: its highest bit is 63.
fn round_to_double(sign: u32, exponent: i32, mantissa: Double, sticky: bool) -> Double {
  if (exponent < 1) { return Double(0u, sign); }
  let below = (mantissa.x & 0x7ffu) * 2u + select(0u, 1u, sticky);
  let kept_bits = Double((mantissa.x >> 11u) | (mantissa.y << 21u), mantissa.y >> 11u);
  let up = below > 0x800u || (below == 0x800u && (kept_bits.x & 1u) != 0u);
  let rounded = add64(kept_bits, Double(select(0u, 1u, up), 0u));
  return Double(rounded.x, sign | (rounded.y + (u32(exponent - 1) << 20u)));
}
fn is_zero(x: Double) -> bool { return exponent_of(x) == 0; }

fn plus(a: Double, b: Double) -> Double {
  if (is_zero(b)) { return select(a, Double(0u, a.y & b.y & 0x80000000u), is_zero(a)); }
  if (is_zero(a)) { return b; }
  let swap = less64(Double(a.x, a.y & 0x7fffffffu), Double(b.x, b.y & 0x7fffffffu));
  let large = select(a, b, swap);
  let small = select(b, a, swap);
  let first = shift_left64(mantissa_of(large), 10u);
  let second = shift_right_sticky64(shift_left64(mantissa_of(small), 10u), u32(exponent_of(large) - exponent_of(small)));
  var sum = add64(first, second);
  if (((a.y ^ b.y) & 0x80000000u) != 0u) { sum = sub64(first, second); }
  if ((sum.x | sum.y) == 0u) { return ZERO; }
  let lead = leading_zeros64(sum);
  return round_to_double(large.y & 0x80000000u, exponent_of(large) + 1 - i32(lead), shift_left64(sum, lead), false);
}
fn negative(x: Double) -> Double { return Double(x.x, x.y ^ 0x80000000u); }
fn minus(a: Double, b: Double) -> Double { return plus(a, negative(b)); }

fn times(a: Double, b: Double) -> Double {
  let sign = (a.y ^ b.y) & 0x80000000u;
  if (is_zero(a) || is_zero(b)) { return Double(0u, sign); }
  let p = mantissa_of(a);
  let q = mantissa_of(b);
  let lows = product32(p.x, q.x);
  let cross = add64(product32(p.x, q.y), Double(lows.y, 0u));  // below 2^53 + 2^32
  let other = add64(product32(p.y, q.x), Double(cross.x, 0u));
  let high = add64(add64(product32(p.y, q.y), Double(cross.y, 0u)), Double(other.y, 0u));  // from bit 64 on; below 2^42
  let lead = leading_zeros64(high);
  let by = 64u - lead;  // bits of it: 41 or 42
  let below = Double(lows.x, other.x);
  var mantissa = shift_left64(high, lead);
  mantissa = Double(mantissa.x | shift_right64(below, by).x, mantissa.y | shift_right64(below, by).y);
  let lost = shift_left64(below, lead);
  return round_to_double(sign, exponent_of(a) + exponent_of(b) - 1023 + i32(by) - 41, mantissa, (lost.x | lost.y) != 0u);
}
fn shift_right64(v: Double, by: u32) -> Double {
  if (by >= 32u) { return Double(v.y >> (by - 32u), 0u); }
  return Double((v.x >> by) | (v.y << (32u - by)), v.y >> by);
}

fn over(a: Double, b: Double) -> Double {
  let sign = (a.y ^ b.y) & 0x80000000u;
  if (is_zero(a)) { return Double(0u, sign); }
  let divisor = mantissa_of(b);
  var rest = mantissa_of(a);
  var exponent = exponent_of(a) - exponent_of(b) + 1023;
  if (less64(rest, divisor)) { rest = shift_left64(rest, 1u); exponent -= 1; }
  var quotient = ZERO;
  for (var i = 0u; i < 55u; i++) {  // 53 bits, and two below them
    quotient = shift_left64(quotient, 1u);
    if (!less64(rest, divisor)) { rest = sub64(rest, divisor); quotient.x |= 1u; }
    rest = shift_left64(rest, 1u);
  }
  return round_to_double(sign, exponent, shift_left64(quotient, 9u), (rest.x | rest.y) != 0u);
}

fn widen(x: f32) -> Double {
  let bits = bitcast<u32>(x);
  let sign = bits & 0x80000000u;
  if ((bits & 0x7fffffffu) == 0u) { return Double(0u, sign); }
  let p = parts_of(bits & 0x7fffffffu);
  return Double(p.mantissa << 29u, sign | (u32(p.exponent + 896) << 20u) | ((p.mantissa & 0x7fffffu) >> 3u));
}
fn narrow(x: Double) -> f32 {
  let sign = x.y & 0x80000000u;
  if (is_zero(x)) { return bitcast<f32>(sign | zero()); }
  let mantissa = mantissa_of(x);
  let top = (mantissa.y << 5u) | (mantissa.x >> 27u);  // 26 bits
  return round_to_float(sign, top, select(0u, 1u, (mantissa.x & 0x7ffffffu) != 0u), exponent_of(x) - 896);
}
// Whether the first of two numbers is greater; neither is NaN, and the sign of 0 does not count.
fn greater(a: Double, b: Double) -> bool {
  if (is_zero(a) && is_zero(b)) { return false; }
  let negative_a = (a.y & 0x80000000u) != 0u;
  let negative_b = (b.y & 0x80000000u) != 0u;
  if (negative_a != negative_b) { return negative_b; }
  return select(less64(b, a), less64(a, b), negative_a);
}

// e^x for x <= 0, where x is clamped to at least -700; sampling/fixed_math.py computes the same.
fn exp_double(x: Double) -> Double {
  let least = Double(0x00000000u, 0xc085e000u);
  let v = select(x, least, greater(least, x));
  let magic = Double(0x00000000u, 0x43380000u);              // 1.5 · 2^52: adding it rounds to a whole number
  let t = plus(times(v, Double(0x652b82feu, 0x3ff71547u)), magic);
  let k = minus(t, magic);
  let r = minus(minus(v, times(k, Double(0xfee00000u, 0x3fe62e42u))), times(k, Double(0x35793c76u, 0x3dea39efu)));
  var term = array(  // 1/12! … 1/0!
    vec2(0xeff8d898u, 0x3e21eed8u), vec2(0x67f544e4u, 0x3e5ae645u), vec2(0xb7789f5du, 0x3e927e4fu), vec2(0xa556c734u, 0x3ec71de3u),
    vec2(0x1a01a01au, 0x3efa01a0u), vec2(0x1a01a01au, 0x3f2a01a0u), vec2(0x16c16c17u, 0x3f56c16cu), vec2(0x11111111u, 0x3f811111u),
    vec2(0x55555555u, 0x3fa55555u), vec2(0x55555555u, 0x3fc55555u), vec2(0x00000000u, 0x3fe00000u), vec2(0x00000000u, 0x3ff00000u),
    vec2(0x00000000u, 0x3ff00000u));
  var y = Double(0x13a86d0au, 0x3de61246u);
  for (var i = 0u; i < 13u; i++) { y = plus(times(y, r), term[i]); }
  return Double(y.x, y.y + (bitcast<u32>(bitcast<i32>(t.x)) << 20u));  // · 2^k, exactly
}
