// Formats of 32 numbers with a scale, and of one number.
// Sources: `quantize_row_q…_ref` and, with an importance matrix, `quantize_row_q…_impl`.
#include "quantise_formats.h"
#include "quantise_search.h"

namespace cutaway {
namespace {

constexpr int kSmall = 32;

// Four bits of each code in 16 bytes; where there is a fifth, it goes into the four bytes of high.
void pack(const uint8_t* codes, uint8_t* out, uint8_t* high = nullptr) {
  for (int i = 0; i < kSmall / 2; i++) out[i] = (uint8_t)((codes[i] & 15) | codes[i + kSmall / 2] << 4);
  if (!high) return;
  uint32_t fifth = 0;
  for (int i = 0; i < kSmall; i++) fifth |= (uint32_t)(codes[i] >> 4 & 1) << i;
  memcpy(high, &fifth, 4);
}

bool q8_0(const float* x, Importance, uint8_t* out) {
  const float d = largest(x, kSmall) / 127.0f, id = inverse(d);
  for (int i = 0; i < kSmall; i++) out[2 + i] = (uint8_t)round_away(x[i] * id);
  return put_half(out, d);
}

// Q4_0 and Q5_0: codes less half of their range, times a scale.
template <int bits>
bool quantise_symmetric(const float* x, uint8_t* out) {
  constexpr float half = 1 << (bits - 1);
  const float peak = largest(x, kSmall);
  float extreme = 0.0f;  // the first of the largest magnitude, with its sign
  for (int i = 0; peak > 0 && extreme == 0; i++)
    if (magnitude(x[i]) == peak) extreme = x[i];
  const float d = extreme / -half, id = inverse(d);
  uint8_t codes[kSmall];
  for (int i = 0; i < kSmall; i++) codes[i] = (uint8_t)std::min((1 << bits) - 1, (int)(x[i] * id + (half + 0.5f)));
  pack(codes, out + (bits == 5 ? 6 : 2), bits == 5 ? out + 2 : nullptr);
  return put_half(out, d);
}

// The bits of a float as an integer that grows with it; its own inverse.
int sort_key(int bits) { return bits ^ (bits >> 31 & 0x7FFFFFFF); }

// Q4_1 and Q5_1: codes times a scale, and a minimum.
template <int bits>
bool from_minimum(const float* x, uint8_t* out) {
  constexpr int top = (1 << bits) - 1;
  int low = 0x7FFFFFFF, high = -0x7FFFFFFF - 1;
  for (int i = 0; i < kSmall; i++) {
    const int key = sort_key((int)bits_of(x[i]));
    low = std::min(low, key), high = std::max(high, key);
  }
  float min = float_of((uint32_t)sort_key(low)), max = float_of((uint32_t)sort_key(high));
  if (min == 0) min = *std::find(x, x + kSmall, 0.0f);  // the first of zeros of either sign
  if (max == 0) max = 0.0f;
  const float d = (max - min) / (float)top, id = inverse(d);
  if (!put_half(out, d) || !put_half(out + 2, min)) return false;
  uint8_t codes[kSmall];
  for (int i = 0; i < kSmall; i++) codes[i] = (uint8_t)std::min(top, (int)((x[i] - min) * id + 0.5f));
  pack(codes, out + (bits == 5 ? 8 : 4), bits == 5 ? out + 4 : nullptr);
  return true;
}

// The scale is searched for where there is an importance matrix, in four quant blocks side by side; zeros fill up
// the last four.
template <int bits, bool has_minimum, int bytes>
int search_scales(const float* x, Importance importance, int count, uint8_t* out) {
  constexpr int four = kSide * kSmall, top = has_minimum ? (1 << bits) - 1 : 1 << (bits - 1);
  for (int start = 0; start < count; start += four) {
    const int blocks = std::min(kSide, (count - start) / kSmall);
    float numbers[four] = {}, weights[four] = {};
    memcpy(numbers, x + start, 4 * (size_t)(blocks * kSmall));
    for (int i = 0; i < blocks * kSmall; i++)
      weights[i] = importance.of[start + i] * __builtin_sqrtf(importance.row_mean_square + numbers[i] * numbers[i]);
    Floats lanes[kSmall], lane_weights[kSmall], scale, low{};
    side_by_side<kSmall>(numbers, lanes), side_by_side<kSmall>(weights, lane_weights);
    Ints lane_codes[kSmall];
    if constexpr (has_minimum) {
      const Affine best = affine<kSmall>(lanes, lane_weights, top, kWeighted, false);
      scale = best.scale, low = best.low;
      for (int i = 0; i < kSmall; i++) lane_codes[i] = best.code(lanes[i], top);
    } else {
      const Symmetric best = symmetric<kSmall>(lanes, lane_weights, top);
      scale = best.scale;
      for (int i = 0; i < kSmall; i++) lane_codes[i] = best.code(lanes[i], top);
    }
    for (int b = 0; b < blocks; b++, out += bytes) {
      const bool finite = is_finite(largest(numbers + b * kSmall, kSmall)) && put_half(out, scale[b]);
      if (!finite || (has_minimum && !put_half(out + 2, low[b]))) return start + b * kSmall;
      uint8_t codes[kSmall], *const rest = out + (has_minimum ? 4 : 2);
      for (int i = 0; i < kSmall; i++) codes[i] = (uint8_t)lane_codes[i][b];
      pack(codes, rest + (bits == 5 ? 4 : 0), bits == 5 ? rest : nullptr);
    }
  }
  return count;
}

template <int bits, bool has_minimum, int bytes>
bool plain(const float* x, Importance, uint8_t* out) {
  if constexpr (has_minimum) return from_minimum<bits>(x, out);
  else return quantise_symmetric<bits>(x, out);
}

template <int bits, bool has_minimum, int bytes>
int write(const float* x, Importance importance, int count, uint8_t* out) {
  if (importance.of) return search_scales<bits, has_minimum, bytes>(x, importance, count, out);
  return one_by_one<kSmall, bytes, plain<bits, has_minimum, bytes>>(x, importance, count, out);
}

bool f16(const float* x, Importance, uint8_t* out) { return put_half(out, *x); }
bool bf16(const float* x, Importance, uint8_t* out) {
  const uint16_t upper = to_bf16(*x);
  return memcpy(out, &upper, 2), (upper & 0x7F80) != 0x7F80;
}
bool f32(const float* x, Importance, uint8_t* out) { return memcpy(out, x, 4), true; }

}  // namespace

const QuantFormat kSmallFormats[] = {
    {"Q8_0", kSmall, 34, one_by_one<kSmall, 34, q8_0>},
    {"Q4_0", kSmall, 18, write<4, false, 18>},
    {"Q4_1", kSmall, 20, write<4, true, 20>},
    {"Q5_0", kSmall, 22, write<5, false, 22>},
    {"Q5_1", kSmall, 24, write<5, true, 24>},
    {"F16", 1, 2, one_by_one<1, 2, f16>},
    {"BF16", 1, 2, one_by_one<1, 2, bf16>},
    {"F32", 1, 4, one_by_one<1, 4, f32>},
};

}  // namespace cutaway
