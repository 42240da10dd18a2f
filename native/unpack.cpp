// Rows of panels as floats, exactly as the file's decoder gives them.
#include <string.h>

#include <array>
#include <utility>

#include "pack.h"
#include "pack_blocks.h"

namespace cutaway {

float half_to_float(uint16_t h) {
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  float value = exponent ? __builtin_ldexpf((float)(1024 + fraction), exponent - 25)
                         : __builtin_ldexpf((float)fraction, -24);
  if (exponent == 31) value = fraction ? __builtin_nanf("") : __builtin_inff();
  return h & 0x8000 ? -value : value;
}

namespace {

float e8m0_to_float(uint8_t e) { return __builtin_ldexpf(1, e - 128); }
float e4m3_to_float(uint8_t e) { return half_to_float((uint16_t)(e << 7)) * 128; }

int code_in(int bits, const uint8_t* plane, int lane, int k) {
  const Place at = place(bits, k / 4);
  return plane[at.load + 4 * lane + k % 4] >> at.bit & ((1 << bits) - 1);
}

template <Format F>
float code_value(const uint8_t* block, int lane, int k) {
  constexpr Layout l = kLayouts[F];
  constexpr int lower = lower_bits(l.bits), upper = upper_bits(l.bits);
  int code = code_in(lower, block, lane, k);
  if constexpr (upper > 0) code |= code_in(upper, block + 64 * lower, lane, k) << lower;
  if constexpr (l.values != nullptr) return l.values[code];
  return (float)(l.offset < 0 ? code : code - (1 << l.offset));
}

// The scale of the sub-block that has its byte at p; d is the half before it.
template <Format F>
float scale_value(const uint8_t* p, float d) {
  constexpr Layout l = kLayouts[F];
  if constexpr (l.scale == Scale::kShared || has_float(l)) return d;
  else if constexpr (l.scale == Scale::kE8M0) return e8m0_to_float(*p);
  else if constexpr (l.scale == Scale::kE4M3) return e4m3_to_float(*p);
  else return d * (l.minima ? (float)*p : (float)(int8_t)*p);
}

template <Format F>
void decode_lane(const uint8_t* p, int lane, int cols, float* out) {
  constexpr Layout l = kLayouts[F];
  constexpr int subs = kQuant / l.sub;
  float d = 0, d_min = 0;
  for (int b = 0; b < cols / kQuant; b++, p += block_bytes(l), out += kQuant) {
    if (has_header(l) && b % l.blocks == 0) {
      d = half_to_float(half_at(p + 2 * lane)) * l.unit;
      if (has_float(l)) memcpy(&d, p + 4 * lane, 4);
      if (l.scale == Scale::kGroup) d_min = (float)(int8_t)p[64 + lane];
      else if (l.scale == Scale::kAffine) memcpy(&d_min, p + 64 + 4 * lane, 4);
      else if (l.minima) d_min = half_to_float(half_at(p + 32 + 2 * lane));
      p += header_bytes(l);
    }
    const uint8_t* s = p + code_bytes(l);
    for (int sub = 0; sub < subs; sub++) {
      float scale, minimum = 0;
      if constexpr (l.scale == Scale::kHalf) {
        scale = half_to_float(half_at(s + 2 * lane));
        if (l.minima) minimum = half_to_float(half_at(s + 32 + 2 * lane));
      } else {
        scale = scale_value<F>(s + 16 * sub + lane, d);
        if (has_float(l)) minimum = d_min;
        else if (l.minima) minimum = d_min * (float)s[16 * (subs + sub) + lane];
      }
#pragma GCC unroll 32
      for (int k = 0; k < l.sub; k++) {
        const float code = code_value<F>(p, lane, sub * l.sub + k) + lift(l);
        if (l.scale == Scale::kGroup) out[sub * l.sub + k] = scale * (code - minimum);
        else out[sub * l.sub + k] = l.minima ? scale * code + minimum : scale * code;
      }
    }
  }
}

template <Format F>
void decode_float_lane(const uint8_t* p, int lane, int cols, float* out) {
  for (int k = 0; k < cols; k++) {
    const uint8_t* at = p + ((size_t)k * kLanes + lane) * (F == F32 ? 4 : 2);
    const uint32_t wide = (uint32_t)half_at(at) << 16;
    if (F == F16) out[k] = half_to_float(half_at(at));
    else memcpy(out + k, F == F32 ? (const void*)at : &wide, 4);
  }
}

float fp8_to_float(uint8_t b) {
  if ((b & 127) == 127) return b & 128 ? -__builtin_nanf("") : __builtin_nanf("");
  return 256 * half_to_float((uint16_t)((b & 128) << 8 | (b & 127) << 7));
}

template <Format F>
void decode_float_group_lane(const uint8_t* p, int lane, int cols, float* out) {
  constexpr int group = kFloatGroups[F - FP8_G32], bytes = F == NF4 ? group / 2 : group;
  for (int begin = 0; begin < cols; begin += group, p += 64 + kLanes * bytes) {
    float scale;
    memcpy(&scale, p + 4 * lane, 4);
    for (int k = 0; k < group; k++) {
      const uint8_t code = p[64 + kLanes * (F == NF4 ? k / 2 : k) + lane];
      *out++ = scale * (F == NF4 ? kNF4[code >> k % 2 * 4 & 15] : fp8_to_float(code));
    }
  }
}

using DecodeLane = void (*)(const uint8_t* panel, int lane, int cols, float* out);

template <Format F> constexpr DecodeLane decoder() {
  if constexpr (is_grouped_float(F)) return decode_float_group_lane<F>;
  else if constexpr (is_float(F)) return decode_float_lane<F>;
  else return decode_lane<F>;
}

template <int... formats> constexpr auto decoders(std::integer_sequence<int, formats...>) {
  return std::array{decoder<(Format)formats>()...};
}
constexpr auto kDecoders = decoders(std::make_integer_sequence<int, kFormats>());

}  // namespace

void unpack_row(Format f, const uint8_t* panel, int lane, int cols, float* out) { kDecoders[f](panel, lane, cols, out); }

void Packed::decode_row(int row, float* out) const {
  unpack_row(format, data + (row / kLanes) * panel, row % kLanes, cols, out);
  if (factor != 1)
    for (int k = 0; k < cols; k++) out[k] *= factor;
}

}  // namespace cutaway
