// A packed matrix of codes, as native/formats.h lays it out. A panel is 16 rows of the matrix and begins at a word of `weights`. A word
// has four codes that are neighbours in a row. The constants above all files say the format: BITS, SUB, OFFSET, SCALE, MINIMA, SUPER,
// UNIT, LOOKED_UP and VALUES.
const HALF = 0u;
const SHARED = 1u;
const BYTE = 2u;
const E8M0 = 3u;
const E4M3 = 4u;
const GROUP = 5u;
const AFFINE = 6u;
const LOWER: u32 = select(select(select(1u, 2u, BITS >= 2u), 4u, BITS >= 4u), 8u, BITS >= 8u);  // bits of the first plane
const UPPER: u32 = BITS - LOWER;
const SUBS: u32 = 32u / SUB;
const ADDS_MINIMA: bool = MINIMA && SCALE != GROUP;
const HAS_FLOAT: bool = SCALE == GROUP || SCALE == AFFINE;
const LIFT: i32 = select(0, 128, SCALE == AFFINE && BITS == 8u);  // what is added to codes()
const HEADER: u32 = select(select(0u, select(8u, 16u, MINIMA), SCALE == SHARED || SCALE == BYTE), select(20u, 32u, SCALE == AFFINE), HAS_FLOAT);
const SCALES: u32 = select(select(4u * SUBS, 8u, SCALE == HALF), 0u, SCALE == SHARED || HAS_FLOAT) * select(1u, 2u, MINIMA);
const BLOCK: u32 = 16u * BITS + SCALES;             // words of a quant block
const TERMS: u32 = SUBS * select(1u, 2u, ADDS_MINIMA);  // fused() of a quant block

fn plane(at: u32, bits: u32, group: u32) -> u32 {
  let bit = group * bits;
  if (bits == 4u) { return (weights[at + 16u * (group & 3u)] >> select(0u, 4u, group >= 4u)) & 0x0f0f0f0fu; }
  let mask = select(0x01010101u, 0x03030303u, bits == 2u);
  return (weights[at + 16u * (bit >> 3u)] >> (bit & 7u)) & mask;
}
// Four codes of a row, which follow each other from 4 * group on, as signed bytes; at: of the quant block's codes and the row.
fn codes(at: u32, group: u32) -> u32 {
  if (BITS == 8u) { return weights[at + 16u * group] ^ 0x80808080u; }
  var word = plane(at, LOWER, group);
  if (UPPER > 0u) { word |= plane(at + 16u * LOWER, UPPER, group) << LOWER; }
  if (LOOKED_UP) {
    var found = 0u;
    for (var i = 0u; i < 32u; i += 8u) {
      let code = (word >> i) & 15u;
      found |= ((VALUES[code >> 2u] >> (8u * (code & 3u))) & 255u) << i;
    }
    return found;
  }
  return word;
}
const STARTS: bool = !LOOKED_UP && BITS != 8u && OFFSET >= 0;  // whether codes() begin at 0 and stand for 2^OFFSET less

fn half_at(word: u32, row: u32) -> f32 { return half_to_float((weights[word + (row >> 1u)] >> (16u * (row & 1u))) & 0xffffu); }
fn byte_at(word: u32, row: u32) -> u32 { return (weights[word + (row >> 2u)] >> (8u * (row & 3u))) & 0xffu; }
fn signed_byte(byte: u32) -> i32 { return bitcast<i32>(byte << 24u) >> 24u; }

fn header_of(panel: u32, block: u32) -> u32 { return panel + (block / SUPER) * (HEADER + SUPER * BLOCK); }
fn block_of(panel: u32, block: u32) -> u32 { return header_of(panel, block) + HEADER + (block % SUPER) * BLOCK; }
fn shared_half(header: u32, row: u32) -> f32 {
  let half = half_at(header, row);
  if (UNIT == 0x3f800000u) { return half; }
  return mul(half, number(UNIT));
}
fn scale_of(panel: u32, block: u32, sub_block: u32, row: u32) -> f32 {
  let header = header_of(panel, block);
  let at = block_of(panel, block) + 16u * BITS;
  switch (SCALE) {
    case HALF: { return half_at(at, row); }
    case SHARED: { return shared_half(header, row); }
    case GROUP, AFFINE: { return number(weights[header + row]); }
    case E8M0: {
      let exponent = byte_at(at + 4u * sub_block, row);
      return number(select((exponent - 1u) << 23u, 0x00200000u << exponent, exponent < 2u) ^ zero());
    }
    case E4M3: { return mul(half_to_float(byte_at(at + 4u * sub_block, row) << 7u), 128.0); }
    default: {
      let byte = byte_at(at + 4u * sub_block, row);
      return mul(shared_half(header, row), select(f32(signed_byte(byte)), f32(byte), MINIMA));
    }
  }
}
fn minimum_of(panel: u32, block: u32, sub_block: u32, row: u32) -> f32 {
  let at = block_of(panel, block) + 16u * BITS;
  if (SCALE == HALF) { return half_at(at + 8u, row); }
  if (SCALE == AFFINE) { return number(weights[header_of(panel, block) + 16u + row]); }
  return mul(half_at(header_of(panel, block) + 8u, row), f32(byte_at(at + 4u * (SUBS + sub_block), row)));
}
// The code that stands for 0, in a format whose scales are of groups.
fn zero_of(panel: u32, block: u32, row: u32) -> i32 { return signed_byte(byte_at(header_of(panel, block) + 16u, row)); }

// Where the sums of a whole quant block of activations, or of its halves, lie in it; they are after its 32 bytes and the step.
fn sum_at(sub_block: u32) -> u32 { return select(10u + sub_block, 9u, SUB == 32u); }    // step · sum
fn minus_at(sub_block: u32) -> u32 { return select(13u + sub_block, 12u, SUB == 32u); }  // -sum
