// Halves, rounding and other arithmetic of quantising, written down to the bit.
#pragma once
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <bit>

namespace cutaway {

inline uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
inline float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }
inline float magnitude(float x) { return float_of(bits_of(x) & 0x7FFFFFFF); }
inline bool is_finite(float x) { return (bits_of(x) & 0x7F800000) != 0x7F800000; }

// It has no branches, so that loops over it become vectors. Exact, subnormals included.
inline float from_half(uint16_t h) {
  const float scaled = float_of((uint32_t)(h & 0x7FFF) << 13) * 0x1p112f;
  const uint32_t special = scaled >= 65536.0f ? 0x7F800000 : 0;
  return float_of(bits_of(scaled) | special | (uint32_t)(h & 0x8000) << 16);
}

// Rounds to nearest, ties to even: the addition rounds at the last bit of the half.
inline uint16_t to_half(float x) {
  const uint32_t twice = bits_of(x) << 1, sign = bits_of(x) >> 16 & 0x8000;
  const float scaled = magnitude(x) * 0x1p112f * 0x1p-110f;
  const uint32_t bias = std::max(twice & 0xFF000000, 0x71000000u);
  const uint32_t rounded = bits_of(float_of((bias >> 1) + 0x07800000) + scaled);
  return (uint16_t)(sign | ((rounded >> 13 & 0x7C00) + (rounded & 0x0FFF)));
}

inline uint16_t to_bf16(float x) { return (uint16_t)((bits_of(x) + 0x7FFF + (bits_of(x) >> 16 & 1)) >> 16); }

// Ties to even for |x| up to 2^22; beyond that, and for NaN, whatever ggml's nearest_int gives.
inline int nearest(float x) { return (int)(bits_of(x + 12582912.0f) & 0x7FFFFF) - 0x400000; }
// Ties away from zero, as roundf; for |x| below 2^22.
inline int round_away(float x) {
  const int whole = (int)magnitude(x);
  const int up = whole + (magnitude(x) - (float)whole >= 0.5f);
  return x < 0 ? -up : up;
}

// 1 / d; 0 where that is too large, and then a half holds no such d either.
inline float inverse(float d) {
  const float inverse = 1.0f / d;
  return is_finite(inverse) ? inverse : 0.0f;
}

// Whether the half is finite: scales are.
inline bool put_half(uint8_t* out, float x) {
  const uint16_t half = to_half(x);
  return memcpy(out, &half, 2), (half & 0x7C00) != 0x7C00;
}
inline float half_of(float x) { return from_half(to_half(x)); }

// The largest magnitude. As integers the bits of magnitudes are in their order.
inline float largest(const float* x, int count) {
  int bits = 0;
  for (int i = 0; i < count; i++) bits = std::max(bits, (int)(bits_of(x[i]) & 0x7FFFFFFF));
  return float_of((uint32_t)bits);
}

// Added one after another, which is what the reference does.
inline float sum_of_squares(const float* x, int count, float sum = 0.0f) {
  for (int i = 0; i < count; i++) sum += x[i] * x[i];
  return sum;
}

}  // namespace cutaway
