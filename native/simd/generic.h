// Plain C++ for any machine: the definition that the other tiers must equal, bit for bit.
#pragma once

namespace cutaway::CUTAWAY_TIER {

constexpr int kVectors = 4;  // what a compiler still finishes with

struct F { float v[16]; };
struct I { int32_t v[16]; };
struct W { uint8_t v[64]; };

#define LANES for (int i = 0; i < 16; i++)
#define BYTES for (int i = 0; i < 64; i++)

INLINE F load(const float* p) { F r; memcpy(r.v, p, 64); return r; }
INLINE void store(float* p, F v) { memcpy(p, v.v, 64); }
INLINE F set1(float x) { F r; LANES r.v[i] = x; return r; }
INLINE F add(F a, F b) { LANES a.v[i] += b.v[i]; return a; }
INLINE F sub(F a, F b) { LANES a.v[i] -= b.v[i]; return a; }
INLINE F mul(F a, F b) { LANES a.v[i] *= b.v[i]; return a; }
INLINE F div(F a, F b) { LANES a.v[i] /= b.v[i]; return a; }
INLINE F fma(F a, F b, F c) { LANES a.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]); return a; }
INLINE F max(F a, F b) { LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
INLINE F min(F a, F b) { LANES a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
INLINE F select_lt(F a, F b, F yes, F no) {
  LANES no.v[i] = a.v[i] < b.v[i] ? yes.v[i] : no.v[i];
  return no;
}
INLINE float sum16(F x) {
  for (int n = 8; n; n /= 2)
    for (int i = 0; i < n; i++) x.v[i] += x.v[i + n];
  return x.v[0];
}
INLINE float max16(F x) {
  for (int i = 1; i < 16; i++) x.v[0] = x.v[i] > x.v[0] ? x.v[i] : x.v[0];
  return x.v[0];
}
INLINE float half_to_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
  uint32_t bits;
  if (exponent == 31) bits = sign | 0x7f800000u | fraction << 13 | (fraction ? 0x400000u : 0);
  else if (exponent) bits = sign | (exponent + 112) << 23 | fraction << 13;
  else {
    float tiny = (float)fraction * 5.9604644775390625e-8f;  // fraction · 2^-24, exact
    memcpy(&bits, &tiny, 4);
    bits |= sign;
  }
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
INLINE uint16_t float_to_half(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  uint32_t sign = (bits >> 16) & 0x8000, x = bits & 0x7fffffff;
  if (x > 0x7f800000) return (uint16_t)(sign | 0x7e00 | ((x >> 13) & 0x3ff));
  if (x >= 0x477ff000) return (uint16_t)(sign | 0x7c00);  // 65520 and above round to infinity
  if (x < 0x38800000) {  // subnormal half: let the addition of 0.5 round at 2^-24
    float magnitude;
    memcpy(&magnitude, &x, 4);
    magnitude += 0.5f;
    memcpy(&x, &magnitude, 4);
    return (uint16_t)(sign | (x - 0x3f000000));
  }
  return (uint16_t)(sign | ((x - 0x38000000 + 0xfff + ((x >> 13) & 1)) >> 13));
}
INLINE F load_half(const uint16_t* p) { F r; LANES r.v[i] = half_to_float(p[i]); return r; }
INLINE F splat_half(const uint16_t* p) { return set1(half_to_float(*p)); }
INLINE void store_half(uint16_t* p, F v) { LANES p[i] = float_to_half(v.v[i]); }
INLINE F load_bf16(const uint16_t* p) {
  F r;
  LANES { uint32_t bits = (uint32_t)p[i] << 16; memcpy(&r.v[i], &bits, 4); }
  return r;
}
INLINE F load_u8(const uint8_t* p) { F r; LANES r.v[i] = p[i]; return r; }
// Lane i has byte i's lower half, and lane i + 8 its upper; lane i has bit i of two bytes.
INLINE F load_u4(const uint8_t* p) { F r; LANES r.v[i] = i < 8 ? p[i] & 15 : p[i - 8] >> 4; return r; }
INLINE F load_u1(const uint8_t* p) { F r; LANES r.v[i] = p[i / 8] >> i % 8 & 1; return r; }
INLINE F load_i8(const uint8_t* p) { F r; LANES r.v[i] = (int8_t)p[i]; return r; }
INLINE F load_e8m0(const uint8_t* p) {
  F r;
  LANES { uint32_t bits = p[i] < 2 ? 0x00200000u << p[i] : (uint32_t)(p[i] - 1) << 23; memcpy(&r.v[i], &bits, 4); }
  return r;
}
INLINE F load_e4m3(const uint8_t* p) { F r; LANES r.v[i] = half_to_float((uint16_t)(p[i] << 7)) * 128.0f; return r; }

INLINE F load_fp8(const uint8_t* p) {  // divided by 256: as a half its exponent is so much less
  F r;
  LANES r.v[i] = half_to_float((uint16_t)((p[i] & 128) << 8 | (p[i] & 127) << 7));
  return r;
}
// Looks up 16 entries of a table of 16, by the 4 bits from SHIFT on of 16 bytes.
template <int SHIFT> INLINE F from_table(const float* table, const uint8_t* p) {
  F r;
  LANES r.v[i] = table[p[i] >> SHIFT & 15];
  return r;
}

INLINE void store_i8(int8_t* p, F v) { LANES p[i] = (int8_t)v.v[i]; }  // whole numbers, -128 … 127

INLINE I splat_i(int32_t x) { I r; LANES r.v[i] = x; return r; }
template <int N> INLINE I shl_i(I a) { LANES a.v[i] = a.v[i] * (1 << N); return a; }
INLINE F to_float(I a) { F r; LANES r.v[i] = (float)a.v[i]; return r; }
INLINE I as_int(F a) { I r; memcpy(r.v, a.v, 64); return r; }
INLINE F pow2(I n) {
  F r;
  LANES { uint32_t bits = ((uint32_t)n.v[i] + 127) << 23; memcpy(&r.v[i], &bits, 4); }
  return r;
}

INLINE W load_w(const uint8_t* p) { W r; memcpy(r.v, p, 64); return r; }
INLINE void store_w(uint8_t* p, W w) { memcpy(p, w.v, 64); }
template <int from, int count, int to> INLINE W field(W w) {
  BYTES w.v[i] = (uint8_t)((w.v[i] >> from & ((1 << count) - 1)) << to);
  return w;
}
INLINE W or_w(W a, W b) { BYTES a.v[i] |= b.v[i]; return a; }
INLINE W lookup(W index, const uint8_t* table) { BYTES index.v[i] = table[index.v[i]]; return index; }
template <int bits> INLINE I dot16(I acc, const W* w, const int8_t* x) {
  for (int k = 0; k < 16; k++) LANES acc.v[i] += (int32_t)w[k / 4].v[4 * i + k % 4] * x[k];
  return acc;
}
INLINE I offset_full(int32_t minus_sum) { return shl_i<7>(splat_i(minus_sum)); }

#undef LANES
#undef BYTES
}  // namespace cutaway::CUTAWAY_TIER
