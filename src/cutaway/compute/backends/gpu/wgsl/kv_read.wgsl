// Reads numbers of keys and values; at: the byte at which a head's part of a block begins.
alias Kept = u32;
fn kept_byte(at: u32) -> u32 { return (kept[at >> 2u] >> (8u * (at & 3u))) & 0xffu; }
fn kept_half(at: u32) -> f32 { return half_to_float((kept[at >> 2u] >> (8u * (at & 2u))) & 0xffffu); }

fn decode(format: u32, code: u32, scale: f32, minimum_at: u32) -> f32 {
  if (format == Q8_0) { return mul(f32(bitcast<i32>(code << 24u) >> 24u), scale); }
  var minimum = mul(scale, -8.0);
  if (format == Q5_1) { minimum = kept_half(minimum_at); }
  return fused(f32(code), scale, minimum);
}
// Keys: the numbers that a block's 32 tokens have in one dimension are neighbours.
fn key_of(at: u32, head: Head, token: u32, d: u32) -> f32 {
  if (KEYS == F16) { return kept_half(at + (d * 32u + token) * 2u); }
  let half = (d / 32u * 32u + token) * 2u;
  let scale = kept_half(at + head.scales + half);
  if (KEYS == Q8_0) { return decode(KEYS, kept_byte(at + d * 32u + token), scale, 0u); }
  // Byte 2q + r of a token has dimension 4q + r in its lower half, and 4q + r + 2 in its upper.
  let byte = kept_byte(at + ((d / 4u * 2u + (d & 1u)) * 32u + token));
  var code = (byte >> (4u * ((d >> 1u) & 1u))) & 15u;
  if (KEYS == Q5_1) {
    let bits = kept_byte(at + head.fifth + (d / 16u * 2u + (d & 1u)) * 32u + token);
    code |= ((bits >> ((d & 15u) >> 1u)) & 1u) << 4u;
  }
  return decode(KEYS, code, scale, at + head.minima + half);
}
// Values: the numbers of one token are neighbours; size: padded(head_dim).
fn value_of(at: u32, head: Head, size: u32, token: u32, d: u32) -> f32 {
  if (VALUES == F16) { return kept_half(at + (token * size + d) * 2u); }
  let half = (token * ((size + 31u) / 32u) + d / 32u) * 2u;
  let scale = kept_half(at + head.scales + half);
  if (VALUES == Q8_0) { return decode(VALUES, kept_byte(at + token * size + d), scale, 0u); }
  // Byte i of 16 dimensions has dimension i in its lower half, and i + 8 in its upper.
  let byte = kept_byte(at + token * (size / 2u) + d / 16u * 8u + (d & 7u));
  var code = (byte >> (4u * ((d >> 3u) & 1u))) & 15u;
  if (VALUES == Q5_1) { code |= ((kept_byte(at + head.fifth + token * (size / 8u) + d / 8u) >> (d & 7u)) & 1u) << 4u; }
  return decode(VALUES, code, scale, at + head.minima + half);
}
