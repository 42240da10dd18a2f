// Arithmetic that has the same bits on every device, in the words of native/simd/simd.h and native/elementwise.inc.
//
// This file relies only on one addition, subtraction or multiplication of floats at a time, on whole numbers, and on fused_once() of
// the file before it. It uses no division, root, exponential or half of the driver's, and no x * y + z, which a driver may contract.
// See docs/gpu.md.

// Returns the same float, but no compiler knows its value: so a product is rounded before anything is added, and nothing is folded.
fn hide(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero()); }
// Returns a float given by its bits, so that no parser rounds it.
fn constant(bits: u32) -> f32 { return bitcast<f32>(bits ^ zero()); }

fn set1(x: f32) -> f32 { return hide(x); }
fn add(x: f32, y: f32) -> f32 {
  let sum = hide(hide(x) + y);
  if (FLUSHES) { note_hurt(is_denormal(x) | is_denormal(y) | (is_small(sum) & (size_bits(x) != size_bits(y)))); }
  return sum;
}
fn sub(x: f32, y: f32) -> f32 {
  let rest = hide(hide(x) - y);
  if (FLUSHES) { note_hurt(is_denormal(x) | is_denormal(y) | (is_small(rest) & (size_bits(x) != size_bits(y)))); }
  return rest;
}
fn mul(x: f32, y: f32) -> f32 {
  let product = hide(x * y);
  if (FLUSHES) { note_hurt(is_small(product) & (size_bits(x) != 0u) & (size_bits(y) != 0u)); }
  return product;
}
// x * y + z, rounded once. If z is 2^-78 or more, a sum below the least normal number can only be an exact 0.
fn fused(x: f32, y: f32, z: f32) -> f32 {
  let sum = fused_once(x, y, z);
  if (FLUSHES && KEEPS_DENORMALS) { note_hurt(is_denormal(sum)); }
  if (FLUSHES && !KEEPS_DENORMALS) {
    let is_lost = is_small(sum) & (size_bits(z) < 0x18800000u) & (size_bits(x) != 0u) & (size_bits(y) != 0u);
    note_hurt(is_denormal(x) | is_denormal(y) | is_denormal(z) | is_lost);
  }
  return sum;
}

// On a device that FLUSHES denormals these tell whether one that it took for 0 may have changed a result. They read bits, which no
// device flushes.
fn size_bits(x: f32) -> u32 { return bitcast<u32>(x) & 0x7fffffffu; }
fn is_small(x: f32) -> bool { return size_bits(x) < 0x00800000u; }  // a denormal, or 0
fn is_denormal(x: f32) -> bool { return size_bits(x) - 1u < 0x007fffffu; }

// Rounds to the nearest, ties to even. mantissa: 24 bits and two bits below them, so its highest bit is 25; sticky: whether bits below
// these were lost.
fn round_to_float(sign: u32, mantissa: u32, sticky: u32, exponent: i32) -> f32 {
  var m = mantissa;
  var lost = sticky;
  if (exponent < 1) {
    let by = u32(min(1 - exponent, 27));
    lost |= select(0u, 1u, (m & ((1u << by) - 1u)) != 0u);
    m >>= by;
  }
  let field = u32(max(exponent, 1) - 1);
  let even = (m >> 2u) & 1u;
  let up = (m >> 1u) & 1u & (even | (m & 1u) | lost);
  let bits = (field << 23u) + (m >> 2u) + up;
  return bitcast<f32>(sign | select(bits, 0x7f800000u, field >= 254u && bits >= 0x7f800000u));
}

struct Parts { mantissa: u32, exponent: i32 }  // the highest bit of the mantissa is 23
fn parts_of(bits: u32) -> Parts {
  let exponent = (bits >> 23u) & 255u;
  let fraction = bits & 0x7fffffu;
  if (exponent != 0u) { return Parts(fraction | 0x800000u, i32(exponent)); }
  let by = countLeadingZeros(fraction) - 8u;
  return Parts(fraction << by, 1 - i32(by));
}

fn div(x: f32, y: f32) -> f32 {
  let quotient = divide(x, y);
  if (FLUSHES) { note_hurt(is_denormal(quotient)); }
  return quotient;
}
fn divide(x: f32, y: f32) -> f32 {
  let a = bitcast<u32>(x);
  let b = bitcast<u32>(y);
  let sign = (a ^ b) & 0x80000000u;
  let abs_a = a & 0x7fffffffu;
  let abs_b = b & 0x7fffffffu;
  if (abs_a > 0x7f800000u || abs_b > 0x7f800000u || (abs_a == 0u && abs_b == 0u) || (abs_a == 0x7f800000u && abs_b == 0x7f800000u)) {
    return bitcast<f32>(0x7fc00000u ^ zero());
  }
  if (abs_a == 0x7f800000u || abs_b == 0u) { return bitcast<f32>(sign | 0x7f800000u); }
  if (abs_b == 0x7f800000u || abs_a == 0u) { return bitcast<f32>(sign); }
  let p = parts_of(a);
  let q = parts_of(b);
  var rest = p.mantissa;
  var exponent = p.exponent - q.exponent + 127;
  if (rest < q.mantissa) { rest <<= 1u; exponent -= 1; }
  rest -= q.mantissa;
  var quotient = 1u;
  for (var i = 0u; i < 25u; i++) {
    rest <<= 1u;
    quotient <<= 1u;
    if (rest >= q.mantissa) { rest -= q.mantissa; quotient |= 1u; }
  }
  return round_to_float(sign, quotient, select(0u, 1u, rest != 0u), exponent);
}

fn root(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  if ((bits & 0x7fffffffu) == 0u || bits == 0x7f800000u) { return x; }
  if (bits > 0x7f800000u) { return bitcast<f32>(0x7fc00000u ^ zero()); }
  let p = parts_of(bits);
  var mantissa = p.mantissa;
  var exponent = p.exponent - 127;
  if ((exponent & 1) != 0) { mantissa <<= 1u; exponent -= 1; }
  var rest = 0u;
  var digits = 0u;
  for (var i = 25; i >= 0; i--) {  // two bits of mantissa · 2^27 at a time
    let at = 2 * i - 27;
    var two = 0u;
    if (at >= 0) { two = (mantissa >> u32(at)) & 3u; } else if (at == -1) { two = (mantissa << 1u) & 3u; }
    rest = (rest << 2u) | two;
    let trial = (digits << 2u) | 1u;
    digits <<= 1u;
    if (rest >= trial) { rest -= trial; digits |= 1u; }
  }
  return round_to_float(0u, digits, select(0u, 1u, rest != 0u), (exponent >> 1u) + 127);
}

fn half_to_float(h: u32) -> f32 {
  let sign = (h & 0x8000u) << 16u;
  let exponent = (h >> 10u) & 31u;
  let fraction = h & 1023u;
  if (exponent == 31u) { return bitcast<f32>((sign | 0x7f800000u | (fraction << 13u) | select(0u, 0x400000u, fraction != 0u)) ^ zero()); }
  if (exponent != 0u) { return bitcast<f32>(sign | ((exponent + 112u) << 23u) | (fraction << 13u)); }
  return bitcast<f32>(sign | bitcast<u32>(f32(fraction) * constant(0x33800000u)));  // 2^-24
}

fn float_to_half(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let sign = (bits >> 16u) & 0x8000u;
  let size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) { return sign | 0x7e00u | ((bits >> 13u) & 0x3ffu); }
  if (size >= 0x477ff000u) { return sign | 0x7c00u; }  // 65520 and above
  if (size < 0x38800000u) { return sign | (bitcast<u32>(bitcast<f32>(size) + 0.5) - 0x3f000000u); }  // the sum rounds at 2^-24
  return sign | ((size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u);
}
// Limits a float to the range of a half: an infinite value would reach the rows that must not see it, as 0 · infinity.
fn saturated(x: f32) -> f32 { return min(max(x, -65504.0), 65504.0); }

// e^x for x <= 0. Each loop has one fused(), because a compiler that inlines eight of them in a row may take minutes.
fn exp_nonpositive(x: f32) -> f32 {
  let a = max(x, -80.0);
  let n = round(mul(a, constant(0x3fb8aa3bu)));               // 1.44269504
  var minus_ln2 = array(0xbf317200u, 0xb5bfbe8eu);            // -0.693145752, -1.42860677e-6
  var r = a;
  for (var i = 0u; i < 2u; i++) { r = fused(n, constant(minus_ln2[i]), r); }
  var term = array(0x3c088889u, 0x3d2aaaabu, 0x3e2aaaabu, 0x3f000000u, 0x3f800000u, 0x3f800000u);  // 1/120, 1/24, 1/6, 1/2, 1, 1
  var y = constant(0x3ab60b61u);                              // 1/720
  for (var i = 0u; i < 6u; i++) { y = fused(y, r, constant(term[i])); }
  let power = bitcast<f32>(u32(i32(n) + 127) << 23u);
  return select(y * power, 0.0, x < -69.0);
}

fn times_sigmoid(x: f32, a: f32) -> f32 {
  let e = exp_nonpositive(-abs(a));
  return div(select(x, mul(x, e), a < 0.0), add(1.0, e));
}
fn silu(x: f32) -> f32 { return times_sigmoid(x, x); }
fn gelu(x: f32) -> f32 {
  let cubic = fused(mul(mul(x, x), x), constant(0x3d372713u), x);  // 0.044715
  return times_sigmoid(x, mul(cubic, constant(0x3fcc422au)));      // 1.595769122
}
fn gelu_exact(x: f32) -> f32 {
  let z = mul(abs(x), constant(0x3f3504f3u));                        // 0.70710678
  let t = div(1.0, fused(z, constant(0x3ea7ba05u), hide(1.0)));     // 0.3275911
  var term = array(0xbfba00e3u, 0x3fb5f0e3u, 0xbe91a98eu, 0x3e827906u);  // -1.453152027, 1.421413741, -0.284496736, 0.254829592
  var p = constant(0x3f87dc22u);                                     // 1.061405429
  for (var i = 0u; i < 4u; i++) { p = fused(t, p, constant(term[i])); }
  let tail = mul(mul(mul(p, t), 0.5), exp_nonpositive(mul(-z, z)));
  return mul(x, select(sub(1.0, tail), tail, x < 0.0));
}
fn clamped_swiglu(gate: f32, up: f32, limit: f32) -> f32 {
  let g = min(gate, limit);
  let u = max(min(up, limit), -limit);
  return mul(times_sigmoid(g, mul(g, constant(0x3fd9db23u))), add(u, 1.0));  // 1.702
}
fn relu_squared(x: f32) -> f32 {
  let above = max(x, 0.0);
  return mul(above, above);
}
fn elu_less_x(x: f32) -> f32 {
  let below = min(x, 0.0);
  return sub(sub(exp_nonpositive(below), 1.0), below);
}
fn cap_softly(x: f32, cap: f32) -> f32 {
  let t = div(x, cap);
  let e = exp_nonpositive(-2.0 * abs(t));
  let tanh_of_size = div(sub(1.0, e), add(1.0, e));
  return mul(cap, select(tanh_of_size, sub(0.0, tanh_of_size), t < 0.0));
}
fn capped_swiglu(gate: f32, up: f32, cap: f32) -> f32 {
  return mul(times_sigmoid(cap_softly(gate, cap), gate), cap_softly(up, mul(6.25, cap)));
}
fn softplus(x: f32) -> f32 {
  let t = exp_nonpositive(-abs(x));
  let s = div(t, add(2.0, t));
  let square = mul(s, s);
  var term = array(0x3e1d89d9u, 0x3e3a2e8cu, 0x3e638e39u, 0x3e924925u, 0x3ecccccdu, 0x3f2aaaabu, 0x40000000u);  // 2/13 … 2/3, 2
  var y = constant(0x3e088889u);                                     // 2/15
  for (var i = 0u; i < 7u; i++) { y = fused(y, square, constant(term[i])); }
  return add(max(x, 0.0), mul(y, s));
}
