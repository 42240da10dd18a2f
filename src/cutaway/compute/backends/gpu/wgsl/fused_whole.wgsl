// a · b + c, rounded once, in whole numbers alone: 64 bits in two words (low, high).
// Shifts right; if any bit is lost, the lowest bit of the result is set, as Berkeley SoftFloat does it.
fn shift_right_sticky(v: vec2<u32>, by: u32) -> vec2<u32> {
  if (by == 0u) { return v; }
  if (by >= 64u) { return vec2(select(0u, 1u, (v.x | v.y) != 0u), 0u); }
  if (by >= 32u) {
    let n = by - 32u;
    let lost = v.x | select(0u, v.y << (32u - n), n != 0u);
    return vec2((v.y >> n) | select(0u, 1u, lost != 0u), 0u);
  }
  let lost = v.x << (32u - by);
  return vec2((v.x >> by) | (v.y << (32u - by)) | select(0u, 1u, lost != 0u), v.y >> by);
}
fn shift_left(v: vec2<u32>, by: u32) -> vec2<u32> {
  if (by == 0u) { return v; }
  if (by >= 32u) { return vec2(0u, v.x << (by - 32u)); }
  return vec2(v.x << by, (v.y << by) | (v.x >> (32u - by)));
}
fn leading_zeros(v: vec2<u32>) -> u32 { return select(countLeadingZeros(v.y), 32u + countLeadingZeros(v.x), v.y == 0u); }

fn fused_whole(x: f32, y: f32, z: f32) -> f32 {
  let a = bitcast<u32>(x);
  let b = bitcast<u32>(y);
  let c = bitcast<u32>(z);
  let sign_p = (a ^ b) & 0x80000000u;
  let sign_c = c & 0x80000000u;
  let abs_a = a & 0x7fffffffu;
  let abs_b = b & 0x7fffffffu;
  let abs_c = c & 0x7fffffffu;
  if (abs_a >= 0x7f800000u || abs_b >= 0x7f800000u || abs_c >= 0x7f800000u) {
    let is_infinite = abs_a >= 0x7f800000u || abs_b >= 0x7f800000u;
    let is_nan = abs_a > 0x7f800000u || abs_b > 0x7f800000u || abs_c > 0x7f800000u || (is_infinite && (abs_a == 0u || abs_b == 0u))
      || (is_infinite && abs_c == 0x7f800000u && sign_p != sign_c);
    return bitcast<f32>(select(select(sign_c, sign_p, is_infinite) | 0x7f800000u, 0x7fc00000u, is_nan) | zero());
  }
  if (abs_a == 0u || abs_b == 0u) { return bitcast<f32>(select(c, select(0u, sign_p, sign_p == sign_c), abs_c == 0u)); }
  let ea = max(abs_a >> 23u, 1u);
  let eb = max(abs_b >> 23u, 1u);
  let ec = max(abs_c >> 23u, 1u);
  let ma = (abs_a & 0x7fffffu) | select(0u, 0x800000u, abs_a >= 0x800000u);
  let mb = (abs_b & 0x7fffffu) | select(0u, 0x800000u, abs_b >= 0x800000u);
  let mc = (abs_c & 0x7fffffu) | select(0u, 0x800000u, abs_c >= 0x800000u);
  let lows = (ma & 0xfffu) * (mb & 0xfffu);
  let cross = (ma >> 12u) * (mb & 0xfffu) + (ma & 0xfffu) * (mb >> 12u);
  let highs = (ma >> 12u) * (mb >> 12u);
  // highs · 2^24 + cross · 2^12 + lows
  let low = lows + (cross << 12u);
  let carry = select(0u, 1u, low < lows);
  let low2 = low + (highs << 24u);
  let carry2 = select(0u, 1u, low2 < low);
  var p = vec2(low2, (cross >> 20u) + (highs >> 8u) + carry + carry2);
  var e = i32(ea + eb) - 300;
  let by = leading_zeros(p) - 1u;
  p = shift_left(p, by);
  e -= i32(by);
  var sign = sign_p;
  var sum = p;
  if (abs_c != 0u) {
    let by_c = countLeadingZeros(mc) - 1u;
    var q = vec2(0u, mc << by_c);
    let e_c = i32(ec) - 182 - i32(by_c);
    let d = e - e_c;
    if (d >= 0) { q = shift_right_sticky(q, u32(d)); } else { p = shift_right_sticky(p, u32(-d)); e = e_c; }
    if (sign_p == sign_c) {
      let l = p.x + q.x;
      sum = vec2(l, p.y + q.y + select(0u, 1u, l < p.x));
    } else {
      if (p.x == q.x && p.y == q.y) { return bitcast<f32>(zero()); }
      let less = p.y < q.y || (p.y == q.y && p.x < q.x);
      let more = select(p, q, less);
      let rest = select(q, p, less);
      if (less) { sign = sign_c; }
      sum = vec2(more.x - rest.x, more.y - rest.y - select(0u, 1u, more.x < rest.x));
    }
  }
  let lead = leading_zeros(sum);
  sum = shift_left(sum, lead);
  return round_to_float(sign, sum.y >> 6u, select(0u, 1u, ((sum.y & 63u) | sum.x) != 0u), e - i32(lead) + 63 + 127);
}
