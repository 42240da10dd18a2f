// A packed matrix of floats, as native/formats.h lays it out. The constants above all files are KIND, one of the kinds below, and
// GROUP_COLUMNS, how many columns share a scale.
const F32 = 0u;
const F16 = 1u;
const BF16 = 2u;
const FP8 = 3u;
const NF4 = 4u;
const GROUP_WORDS: u32 = 16u + select(4u, 2u, KIND == NF4) * GROUP_COLUMNS;
// -1, -0.6961928009986877 … 1, as kNF4 has them
var<private> NF4_VALUES: array<u32, 16> = array(
  0xbf800000u, 0xbf3239b1u, 0xbf066b30u, 0xbeca32a0u, 0xbe91a24du, 0xbe3d353fu, 0xbdba7871u, 0x00000000u,
  0x3da2faffu, 0x3e24cae3u, 0x3e7c04ddu, 0x3ead033au, 0x3ee1a4b8u, 0x3f1007abu, 0x3f3913b3u, 0x3f800000u);

fn weight(panel: u32, column: u32, row: u32) -> f32 {
  if (KIND == F32) { return number(weights[panel + column * 16u + row]); }
  if (KIND == F16 || KIND == BF16) {
    let half = (weights[panel + column * 8u + (row >> 1u)] >> (16u * (row & 1u))) & 0xffffu;
    if (KIND == BF16) { return number(half << 16u); }
    return half_to_float(half);
  }
  let group = panel + (column / GROUP_COLUMNS) * GROUP_WORDS;
  let within = column % GROUP_COLUMNS;
  let scale = number(weights[group + row]);
  if (KIND == NF4) {
    let byte = (weights[group + 16u + (within >> 1u) * 4u + (row >> 2u)] >> (8u * (row & 3u))) & 0xffu;
    return mul(number(NF4_VALUES[(byte >> (4u * (within & 1u))) & 15u]), scale);
  }
  let byte = (weights[group + 16u + within * 4u + (row >> 2u)] >> (8u * (row & 3u))) & 0xffu;
  let eighth = half_to_float(((byte & 128u) << 8u) | ((byte & 127u) << 7u));  // of a 256th: its exponent is so much less
  return mul(eighth, mul(scale, 256.0));
}
