// Formats whose 4-bit codes are indices of a table of values.
// Sources: `quantize_row_iq4_nl_impl` and `quantize_row_mxfp4_ref` in `ggml-quants.c` of ggml.
#include "quantise_formats.h"
#include "quantise_search.h"

namespace cutaway {
namespace {

constexpr int kGroup = 32;

// Scales of kSide groups; numbers and weights are zeros where there are fewer.
Floats scales_of(const float* numbers, const float* weights) {
  Floats lanes[kGroup], lane_weights[kGroup];
  side_by_side<kGroup>(numbers, lanes), side_by_side<kGroup>(weights, lane_weights);
  return table_scale(lanes, lane_weights);
}

// How much count numbers matter, which share a mean square.
void weigh(const float* x, Importance importance, int count, float* weights) {
  const float mean_square = sum_of_squares(x, count) * (2.0f / (float)count);
  for (int i = 0; i < count; i++)
    weights[i] = importance.of ? importance.of[i] * __builtin_sqrtf(mean_square + x[i] * x[i]) : x[i] * x[i];
}

// The 4-bit codes of a group whose numbers times factor are near values of the table.
void encode(const float* x, float factor, uint8_t* out) {
  uint8_t codes[kGroup];
  for (int i = 0; i < kGroup; i += kSide) {
    Floats four;
    for (int lane = 0; lane < kSide; lane++) four[lane] = factor * x[i + lane];
    const Ints index = nearest_in_table(four);
    for (int lane = 0; lane < kSide; lane++) codes[i + lane] = (uint8_t)index[lane];
  }
  for (int i = 0; i < kGroup / 2; i++) out[i] = (uint8_t)(codes[i] | codes[i + kGroup / 2] << 4);
}

int iq4_nl(const float* x, Importance importance, int count, uint8_t* out) {
  for (int start = 0; start < count; start += kSide * kGroup) {
    const int blocks = std::min(kSide, (count - start) / kGroup);
    float numbers[kSide * kGroup] = {}, weights[kSide * kGroup] = {};
    memcpy(numbers, x + start, 4 * (size_t)(blocks * kGroup));
    for (int i = 0; i < blocks * kGroup; i += kGroup) weigh(numbers + i, importance.at_column(start + i), kGroup, weights + i);
    const Floats scale = scales_of(numbers, weights);
    for (int b = 0; b < blocks; b++, out += 18) {
      const float* group = numbers + b * kGroup;
      if (!is_finite(largest(group, kGroup)) || !put_half(out, scale[b])) return start + b * kGroup;
      encode(group, scale[b] == 0 ? 0.0f : 1.0f / scale[b], out + 2);
    }
  }
  return count;
}

bool iq4_xs(const float* x, Importance importance, uint8_t* out) {
  constexpr int groups = 8, half = groups / kSide * kGroup * 2;
  static_assert(half == kSide * kGroup);
  float weights[groups * kGroup], scales[groups];
  weigh(x, importance, groups * kGroup, weights);
  float peak = 0.0f, extreme = 0.0f;
  for (int g = 0; g < groups; g += kSide) {
    const Floats group_scales = scales_of(x + g * kGroup, weights + g * kGroup);
    for (int lane = 0; lane < kSide; lane++) {
      const float scale = scales[g + lane] = group_scales[lane];
      if (!is_finite(scale)) return false;
      if (magnitude(scale) > peak) peak = magnitude(scale), extreme = scale;
    }
  }
  const float d = -extreme / 32, factor = d == 0 ? 0.0f : 1.0f / d;
  memset(out, 0, 8);
  if (!put_half(out, d)) return false;
  uint16_t high = 0;
  for (int g = 0; g < groups; g++) {
    const int small = std::clamp(nearest(factor * scales[g]), -32, 31), stored = small + 32;
    const float scale = d * (float)small;
    encode(x + g * kGroup, scale == 0 ? 0.0f : 1.0f / scale, out + 8 + g * kGroup / 2);
    out[4 + g / 2] |= (uint8_t)((stored & 15) << g % 2 * 4);
    high |= (uint16_t)(stored >> 4 << 2 * g);
  }
  memcpy(out + 2, &high, 2);
  return true;
}

// ⌊log2 x⌋ of the logarithm as a float: what lies next below 2^k can round up to k. Its distance, gap
// units of 2^(k - 24), is then less than half a unit of the logarithm's last place, which for k in
// (2^m, 2^(m + 1)] is 2^(m - 24). 1 / ln 2 = 1.4427.
int floor_log2(float x) {
  const uint32_t bits = bits_of(x);
  if (bits < 0x00800000) return 31 - std::countl_zero(bits) - 149;
  const int below = (int)(bits >> 23) - 127, gap = 0x00800000 - (int)(bits & 0x007FFFFF);
  const uint32_t whole = (uint32_t)(below >= 0 ? below : -below - 1);
  return below + (whole > 0 && (float)gap * 1.4427f < (float)std::bit_floor(whole));
}

bool mxfp4(const float* x, Importance, uint8_t* out) {
  const float peak = largest(x, kGroup);
  // Below 2^-125 the reference leaves the exponent's range; here the smallest exponent stays.
  const int exponent = peak > 0 ? std::max(floor_log2(peak) + 125, 0) : 0;
  // Half of 2^(exponent - 127), since the values are doubled.
  const float d = exponent < 2 ? float_of(0x00200000u << exponent) : float_of((uint32_t)(exponent - 1) << 23);
  uint8_t codes[kGroup];
  for (int i = 0; i < kGroup; i++) {
    int best = 0;
    float least = magnitude((float)kE2M1[0] * d - x[i]);
    for (int code = 1; code < 16; code++) {
      const float off = magnitude((float)kE2M1[code] * d - x[i]);
      if (off < least) best = code, least = off;
    }
    codes[i] = (uint8_t)best;
  }
  out[0] = (uint8_t)exponent;
  for (int i = 0; i < kGroup / 2; i++) out[1 + i] = (uint8_t)(codes[i] | codes[i + kGroup / 2] << 4);
  return true;
}

}  // namespace

const QuantFormat kTableFormats[] = {
    {"IQ4_NL", kGroup, 18, iq4_nl},
    {"IQ4_XS", 256, 136, one_by_one<256, 136, iq4_xs>},
    {"MXFP4", kGroup, 17, one_by_one<kGroup, 17, mxfp4>},
};

}  // namespace cutaway
