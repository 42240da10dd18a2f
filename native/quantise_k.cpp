// K formats: 256 numbers in groups of 16 or 32, whose small integer scales share one or two halves.
// Sources: `quantize_row_q…_K_ref` and, with an importance matrix, `quantize_row_q…_K_impl`.
#include "quantise_formats.h"
#include "quantise_search.h"

namespace cutaway {
namespace {

constexpr int kWide = 256;  // numbers of a quant block

// What was found for the groups of a quant block, with `size` numbers each.
template <int size>
struct Groups {
  static constexpr int count = kWide / size;
  float scale[count], low[count];
  float weight[count];   // the sum of each group's weights
  uint8_t codes[kWide];  // those of the search: they stay where the scale becomes 0
};

// How much each number matters, group by group: the importance matrix says it, with the mean square of
// the quant block times `times`, and plain where there is none.
template <int size, typename Plain>
void weigh(const float* x, Importance importance, float times, Plain plain, float* weights) {
  const float mean_square = importance.of ? times * sum_of_squares(x, kWide) / kWide : 0.0f;
  for (int start = 0; start < kWide; start += size) {
    if (!importance.of) plain(x + start, weights + start);
    else
      for (int i = start; i < start + size; i++)
        weights[i] = importance.of[i] * __builtin_sqrtf(mean_square + x[i] * x[i]);
  }
}

template <int size>
void put_codes(const Ints* lanes, uint8_t* codes) {
  for (int lane = 0; lane < kSide; lane++)
    for (int i = 0; i < size; i++) codes[lane * size + i] = (uint8_t)lanes[i][lane];
}

template <int size>
void sum_weights(const float* weights, Groups<size>& groups) {
  for (int g = 0; g < groups.count; g++) {
    groups.weight[g] = 0.0f;
    for (int i = 0; i < size; i++) groups.weight[g] += weights[g * size + i];
  }
}

// False where a scale or a minimum is not finite: the numbers are too large.
template <int size>
bool search_affine(const float* x, const float* weights, int top, Tries tries, bool absolute, Groups<size>& groups) {
  for (int g = 0; g < groups.count; g += kSide) {
    Floats lanes[size], lane_weights[size];
    Ints codes[size];
    side_by_side<size>(x + g * size, lanes), side_by_side<size>(weights + g * size, lane_weights);
    const Affine best = affine<size>(lanes, lane_weights, top, tries, absolute);
    for (int i = 0; i < size; i++) codes[i] = best.code(lanes[i], top);
    put_codes<size>(codes, groups.codes + g * size);
    for (int lane = 0; lane < kSide; lane++) {
      groups.scale[g + lane] = best.scale[lane], groups.low[g + lane] = best.low[lane];
      if (!is_finite(best.scale[lane]) || !is_finite(best.low[lane])) return false;
    }
  }
  return true;
}

bool search_symmetric(const float* x, const float* weights, int top, Groups<16>& groups) {
  for (int g = 0; g < groups.count; g += kSide) {
    Floats lanes[16], lane_weights[16];
    Ints codes[16];
    side_by_side<16>(x + g * 16, lanes), side_by_side<16>(weights + g * 16, lane_weights);
    const Symmetric best = symmetric<16>(lanes, lane_weights, top);
    for (int i = 0; i < 16; i++) codes[i] = best.code(lanes[i], top);
    put_codes<16>(codes, groups.codes + g * 16);
    for (int lane = 0; lane < kSide; lane++) {
      groups.scale[g + lane] = best.scale[lane];
      if (!is_finite(best.scale[lane])) return false;
    }
  }
  return true;
}

// The largest scale, or minimum: 0 where none is above it.
float most_of(const float* x, int count) {
  float top = 0.0f;
  for (int i = 0; i < count; i++) top = x[i] > top ? x[i] : top;
  return top;
}

// The first of the largest magnitude, with its sign.
float extreme_of(const float (&x)[16]) {
  float extreme = 0.0f;
  for (float number : x) extreme = magnitude(number) > magnitude(extreme) ? number : extreme;
  return extreme;
}

// The codes of a group once its scale is d, and its minimum is m.
template <int size>
void encode(const float* x, float d, float m, int top, uint8_t* codes) {
  if (d == 0) return;
  for (int i = 0; i < size; i++) codes[i] = (uint8_t)std::clamp(nearest((x[i] + m) / d), 0, top);
}
template <int size>
void encode_around_zero(const float* x, float d, int top, uint8_t* codes) {
  if (d == 0) return;
  for (int i = 0; i < size; i++) codes[i] = (uint8_t)(std::clamp(nearest(x[i] / d), -top, top - 1) + top);
}

// 2 bits each: byte i of a half holds weights i, i + 32, i + 64 and i + 96.
void pack_pairs(const uint8_t* codes, uint8_t* out) {
  for (int half = 0; half < 2; half++, codes += 128, out += 32)
    for (int i = 0; i < 32; i++)
      out[i] = (uint8_t)((codes[i] & 3) | (codes[i + 32] & 3) << 2 | (codes[i + 64] & 3) << 4 | codes[i + 96] << 6);
}

// The lower 4 bits each: byte i of a quarter holds weights i and i + 32.
void pack_fours(const uint8_t* codes, uint8_t* out) {
  for (int quarter = 0; quarter < 4; quarter++, codes += 64, out += 32)
    for (int i = 0; i < 32; i++) out[i] = (uint8_t)((codes[i] & 15) | codes[i + 32] << 4);
}

// One bit each: bit g of byte i is that of weight 32g + i.
void pack_bits(const uint8_t* codes, int bit, uint8_t* out) {
  memset(out, 0, 32);
  for (int i = 0; i < kWide; i++) out[i % 32] |= (uint8_t)((codes[i] >> bit & 1) << i / 32);
}

// 6 bits each: weight 128h + 32q + i has its low bits in byte 64h + i (or + 32 where q is odd), in the
// upper half where q > 1.
void pack_sixes(const uint8_t* codes, uint8_t* low, uint8_t* high) {
  for (int h = 0; h < 2; h++, codes += 128, low += 64, high += 32)
    for (int i = 0; i < 32; i++) {
      const uint8_t a = codes[i], b = codes[i + 32], c = codes[i + 64], d = codes[i + 96];
      low[i] = (uint8_t)((a & 15) | (c & 15) << 4), low[i + 32] = (uint8_t)((b & 15) | (d & 15) << 4);
      high[i] = (uint8_t)(a >> 4 | b >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6);
    }
}

bool q2_k(const float* x, Importance importance, uint8_t* out) {
  Groups<16> groups;
  float weights[kWide];
  weigh<16>(x, importance, 1, [](const float* group, float* to) {
    for (int i = 0; i < 16; i++) to[i] = magnitude(group[i]);
  }, weights);
  const Tries tries = importance.of ? kWeighted : Tries{-0.5f, 0.1f, 15};
  if (!search_affine<16>(x, weights, 3, tries, !importance.of, groups)) return false;
  float minima[16], d, m;
  for (int g = 0; g < 16; g++) minima[g] = -groups.low[g];
  uint8_t scales[16], lows[16];
  if (importance.of) {
    sum_weights(weights, groups);
    d = positive(groups.scale, groups.weight, 16, 15, scales), m = positive(minima, groups.weight, 16, 15, lows);
  } else {
    const float top = most_of(groups.scale, 16), top_low = most_of(minima, 16);
    d = top / 15.0f, m = top_low / 15.0f;
    for (int g = 0; g < 16; g++) {
      scales[g] = top > 0 ? (uint8_t)nearest(15.0f / top * groups.scale[g]) : 0;
      lows[g] = top_low > 0 ? (uint8_t)nearest(15.0f / top_low * minima[g]) : 0;
    }
  }
  if (!put_half(out + 80, d) || !put_half(out + 82, m)) return false;
  for (int g = 0; g < 16; g++) {
    out[g] = (uint8_t)(scales[g] | lows[g] << 4);
    const float small = half_of(d) * (float)(out[g] & 15), low = half_of(m) * (float)(out[g] >> 4);
    encode<16>(x + g * 16, small, low, 3, groups.codes + g * 16);
  }
  pack_pairs(groups.codes, out + 16);
  return true;
}

// A group's scale plus 32, in 6 bits: four in one of the first 8 bytes, two in one of the last 4.
void pack_q3_scales(const uint8_t* scales, uint8_t* out) {
  memset(out, 0, 12);
  for (int g = 0; g < 16; g++) {
    out[g % 8] |= (uint8_t)((scales[g] & 15) << g / 8 * 4);
    out[8 + g % 4] |= (uint8_t)(scales[g] >> 4 << g / 4 * 2);
  }
}

// The scales of Q3_K without an importance matrix; their half.
float q3_scales(const float* x, Groups<16>& groups, uint8_t* scales) {
  for (int g = 0; g < 16; g += kSide) {
    Floats lanes[16];
    Ints codes[16];
    side_by_side<16>(x + g * 16, lanes);
    const Floats group_scales = three_bits(lanes, codes);
    put_codes<16>(codes, groups.codes + g * 16);
    for (int lane = 0; lane < kSide; lane++) {
      groups.scale[g + lane] = group_scales[lane];
      if (!is_finite(group_scales[lane])) return 0x1p127f;  // which no half holds
    }
  }
  const float extreme = extreme_of(groups.scale), factor = -32.0f / extreme;
  for (int g = 0; g < 16; g++)
    scales[g] = extreme == 0 ? 0 : (uint8_t)(std::clamp((int)(int8_t)nearest(factor * groups.scale[g]), -32, 31) + 32);
  return extreme == 0 ? 0.0f : 1.0f / factor;
}

// The same with one: the groups' own scales are searched for as weights are.
float q3_scales(const float* x, Importance importance, Groups<16>& groups, uint8_t* scales) {
  float weights[kWide];
  weigh<16>(x, importance, 2, [](const float*, float*) {}, weights);
  sum_weights(weights, groups);
  if (!search_symmetric(x, weights, 4, groups)) return 0x1p127f;  // which no half holds
  Floats lanes[16], lane_weights[16];
  for (int g = 0; g < 16; g++) lanes[g] = all(groups.scale[g]), lane_weights[g] = all(groups.weight[g]);
  const Symmetric best = symmetric<16>(lanes, lane_weights, 32);
  for (int g = 0; g < 16; g++) scales[g] = (uint8_t)best.code(lanes[g], 32)[0];
  return best.scale[0];
}

bool q3_k(const float* x, Importance importance, uint8_t* out) {
  Groups<16> groups;
  uint8_t scales[16];
  const float d = importance.of ? q3_scales(x, importance, groups, scales) : q3_scales(x, groups, scales);
  if (!put_half(out + 108, d)) return false;
  pack_q3_scales(scales, out + 96);
  for (int g = 0; g < 16; g++)
    encode_around_zero<16>(x + g * 16, half_of(d) * (float)(scales[g] - 32), 4, groups.codes + g * 16);
  pack_bits(groups.codes, 2, out);
  pack_pairs(groups.codes, out + 32);
  return true;
}

// 6 bits of a scale and of a minimum for each of 8 groups, in 12 bytes. What a code has beyond 6 bits
// spills into another's, so that what was written is read back.
void pack_q4_scales(const uint8_t* scales, const uint8_t* lows, uint8_t* out) {
  for (int g = 0; g < 4; g++) {
    out[g] = (uint8_t)(scales[g] | scales[g + 4] >> 4 << 6);
    out[g + 4] = (uint8_t)(lows[g] | lows[g + 4] >> 4 << 6);
    out[g + 8] = (uint8_t)((scales[g + 4] & 15) | (lows[g + 4] & 15) << 4);
  }
}
int q4_scale(const uint8_t* in, int g) { return g < 4 ? in[g] & 63 : (in[g + 4] & 15) | in[g - 4] >> 6 << 4; }
int q4_low(const uint8_t* in, int g) { return g < 4 ? in[g + 4] & 63 : in[g + 4] >> 4 | in[g] >> 6 << 4; }

// The scales and minima of Q4_K and Q5_K, and their codes; false where a half cannot hold one.
bool scales_and_minima(const float* x, Importance importance, int top, Tries tries, Groups<32>& groups, uint8_t* out) {
  float weights[kWide], minima[8], d, m;
  weigh<32>(x, importance, 2, [](const float* group, float* to) {
    const float root = __builtin_sqrtf(sum_of_squares(group, 32) / 32);
    for (int i = 0; i < 32; i++) to[i] = root + magnitude(group[i]);
  }, weights);
  if (!search_affine<32>(x, weights, top, importance.of ? kWeighted : tries, false, groups)) return false;
  for (int g = 0; g < 8; g++) minima[g] = -groups.low[g];
  uint8_t scales[8], lows[8];
  if (importance.of) {
    sum_weights(weights, groups);
    d = positive(groups.scale, groups.weight, 8, 63, scales), m = positive(minima, groups.weight, 8, 63, lows);
  } else {
    const float top = most_of(groups.scale, 8), top_low = most_of(minima, 8);
    const float factor = top > 0 ? 63.0f / top : 0.0f, factor_low = top_low > 0 ? 63.0f / top_low : 0.0f;
    for (int g = 0; g < 8; g++) {
      scales[g] = std::min<uint8_t>(63, (uint8_t)nearest(factor * groups.scale[g]));
      lows[g] = std::min<uint8_t>(63, (uint8_t)nearest(factor_low * minima[g]));
    }
    d = top / 63.0f, m = top_low / 63.0f;
  }
  if (top == 31)  // what is negative would be a large byte; Q4_K leaves it so
    for (int g = 0; g < 8; g++) scales[g] = std::min<uint8_t>(63, scales[g]), lows[g] = std::min<uint8_t>(63, lows[g]);
  if (!put_half(out, d) || !put_half(out + 2, m)) return false;
  pack_q4_scales(scales, lows, out + 4);
  for (int g = 0; g < 8; g++) {
    const float scale = half_of(d) * (float)q4_scale(out + 4, g), low = half_of(m) * (float)q4_low(out + 4, g);
    encode<32>(x + g * 32, scale, low, top, groups.codes + g * 32);
  }
  return true;
}

bool q4_k(const float* x, Importance importance, uint8_t* out) {
  Groups<32> groups;
  if (!scales_and_minima(x, importance, 15, {-1.0f, 0.1f, 20}, groups, out)) return false;
  pack_fours(groups.codes, out + 16);
  return true;
}

bool q5_k(const float* x, Importance importance, uint8_t* out) {
  Groups<32> groups;
  if (!scales_and_minima(x, importance, 31, {-0.5f, 0.1f, 15}, groups, out)) return false;
  pack_bits(groups.codes, 4, out + 16);
  pack_fours(groups.codes, out + 48);
  return true;
}

bool q6_k(const float* x, Importance importance, uint8_t* out) {
  float squares[kWide];
  for (int i = 0; i < kWide; i++) squares[i] = x[i] * x[i];
  Groups<16> groups;
  if (!search_symmetric(x, importance.of ? importance.of : squares, 32, groups)) return false;
  const float extreme = extreme_of(groups.scale);
  memset(out, 0, 210);
  if (magnitude(extreme) < kNothing) return true;
  const float factor = -128.0f / extreme, d = 1.0f / factor;
  if (!put_half(out + 208, d)) return false;
  for (int g = 0; g < 16; g++) {
    const int small = std::min(127, nearest(factor * groups.scale[g]));
    out[192 + g] = (uint8_t)small;
    encode_around_zero<16>(x + g * 16, half_of(d) * (float)small, 32, groups.codes + g * 16);
  }
  pack_sixes(groups.codes, out, out + 128);
  return true;
}

}  // namespace

const QuantFormat kWideFormats[] = {
    {"Q2_K", kWide, 84, one_by_one<kWide, 84, q2_k>},   {"Q3_K", kWide, 110, one_by_one<kWide, 110, q3_k>},
    {"Q4_K", kWide, 144, one_by_one<kWide, 144, q4_k>}, {"Q5_K", kWide, 176, one_by_one<kWide, 176, q5_k>},
    {"Q6_K", kWide, 210, one_by_one<kWide, 210, q6_k>},
};

}  // namespace cutaway
