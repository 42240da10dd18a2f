// NEON with the dot product extension, and with 8-bit matrix products: each vector is four registers.
#pragma once
#include <arm_neon.h>

namespace cutaway::CUTAWAY_TIER {

constexpr int kVectors = 8;

struct F { float32x4_t v[4]; };
struct I { int32x4_t v[4]; };
struct W { uint8x16_t v[4]; };

#define EACH for (int i = 0; i < 4; i++)

INLINE F load(const float* p) { F r; EACH r.v[i] = vld1q_f32(p + 4 * i); return r; }
INLINE void store(float* p, F a) { EACH vst1q_f32(p + 4 * i, a.v[i]); }
INLINE F set1(float x) { F r; EACH r.v[i] = vdupq_n_f32(x); return r; }
INLINE F add(F a, F b) { EACH a.v[i] = vaddq_f32(a.v[i], b.v[i]); return a; }
INLINE F sub(F a, F b) { EACH a.v[i] = vsubq_f32(a.v[i], b.v[i]); return a; }
INLINE F mul(F a, F b) { EACH a.v[i] = vmulq_f32(a.v[i], b.v[i]); return a; }
INLINE F div(F a, F b) { EACH a.v[i] = vdivq_f32(a.v[i], b.v[i]); return a; }
INLINE F fma(F a, F b, F c) { EACH c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]); return c; }
// The second operand where the comparison fails, a NaN included, as on x86.
INLINE F max(F a, F b) { EACH a.v[i] = vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); return a; }
INLINE F min(F a, F b) { EACH a.v[i] = vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); return a; }
INLINE F select_lt(F a, F b, F yes, F no) {
  EACH no.v[i] = vbslq_f32(vcltq_f32(a.v[i], b.v[i]), yes.v[i], no.v[i]);
  return no;
}
INLINE float sum16(F x) {
  float32x4_t x4 = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
  float32x2_t x2 = vadd_f32(vget_low_f32(x4), vget_high_f32(x4));
  return vget_lane_f32(x2, 0) + vget_lane_f32(x2, 1);
}
INLINE float max16(F x) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.v[0], x.v[2]), vmaxq_f32(x.v[1], x.v[3]))); }
INLINE F load_half(const uint16_t* p) {
  F r;
  EACH r.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
  return r;
}
INLINE F splat_half(const uint16_t* p) {
  const float32x4_t x = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(*p)));
  return {{x, x, x, x}};
}
INLINE void store_half(uint16_t* p, F a) {
  EACH vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i])));
}
INLINE F load_bf16(const uint16_t* p) {
  F r;
  EACH r.v[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16));
  return r;
}
INLINE F load_u8(const uint8_t* p) {
  float wide[16];
  for (int i = 0; i < 16; i++) wide[i] = p[i];
  return load(wide);
}
// Lane i has byte i's lower half, and lane i + 8 its upper; lane i has bit i of two bytes.
INLINE F load_u4(const uint8_t* p) {
  const uint8x8_t v = vld1_u8(p);
  uint8_t codes[16];
  vst1q_u8(codes, vcombine_u8(vand_u8(v, vdup_n_u8(15)), vshr_n_u8(v, 4)));
  return load_u8(codes);
}
INLINE F load_u1(const uint8_t* p) {
  float wide[16];
  for (int i = 0; i < 16; i++) wide[i] = p[i / 8] >> i % 8 & 1;
  return load(wide);
}
INLINE F load_i8(const uint8_t* p) {
  float wide[16];
  for (int i = 0; i < 16; i++) wide[i] = (int8_t)p[i];
  return load(wide);
}
INLINE F load_e8m0(const uint8_t* p) {
  const uint8x16_t all = vld1q_u8(p);
  const uint16x8_t half[2] = {vmovl_u8(vget_low_u8(all)), vmovl_u8(vget_high_u8(all))};
  const int32x4_t unit = vdupq_n_s32(1);
  F r;
  EACH {
    const uint16x8_t h = half[i / 2];
    const int32x4_t e = vreinterpretq_s32_u32(vmovl_u16(i % 2 ? vget_high_u16(h) : vget_low_u16(h)));
    r.v[i] = vreinterpretq_f32_s32(vmaxq_s32(vshlq_n_s32(vsubq_s32(e, unit), 23), vshlq_n_s32(vaddq_s32(e, unit), 21)));
  }
  return r;
}
INLINE F load_e4m3(const uint8_t* p) {
  uint16_t halves[16];
  for (int i = 0; i < 2; i++) vst1q_u16(halves + 8 * i, vshll_n_u8(vld1_u8(p + 8 * i), 7));
  return mul(load_half(halves), set1(128.0f));
}

INLINE F load_fp8(const uint8_t* p) {  // divided by 256: as a half its exponent is so much less
  F r;
  for (int i = 0; i < 2; i++) {
    const int16x8_t v = vshrq_n_s16(vreinterpretq_s16_u16(vshll_n_u8(vld1_u8(p + 8 * i), 8)), 1);
    const uint16x8_t half = vandq_u16(vreinterpretq_u16_s16(v), vdupq_n_u16(0xbf80));
    r.v[2 * i] = vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(half)));
    r.v[2 * i + 1] = vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(half)));
  }
  return r;
}
// Looks up 16 entries of a table of 16, by the 4 bits from SHIFT on of 16 bytes.
template <int SHIFT> INLINE F from_table(const float* table, const uint8_t* p) {
  float wide[16];
  for (int i = 0; i < 16; i++) wide[i] = table[p[i] >> SHIFT & 15];
  return load(wide);
}

INLINE void store_i8(int8_t* p, F v) {  // whole numbers, -128 … 127
  float wide[16];
  store(wide, v);
  for (int i = 0; i < 16; i++) p[i] = (int8_t)wide[i];
}

INLINE I splat_i(int32_t x) { I r; EACH r.v[i] = vdupq_n_s32(x); return r; }
template <int N> INLINE I shl_i(I a) { EACH a.v[i] = vshlq_n_s32(a.v[i], N); return a; }
INLINE F to_float(I a) { F r; EACH r.v[i] = vcvtq_f32_s32(a.v[i]); return r; }
INLINE I as_int(F a) { I r; EACH r.v[i] = vreinterpretq_s32_f32(a.v[i]); return r; }
INLINE F pow2(I n) {
  F r;
  EACH r.v[i] = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n.v[i], vdupq_n_s32(127)), 23));
  return r;
}

INLINE W load_w(const uint8_t* p) { W r; EACH r.v[i] = vld1q_u8(p + 16 * i); return r; }
INLINE void store_w(uint8_t* p, W w) { EACH vst1q_u8(p + 16 * i, w.v[i]); }
template <int from, int count, int to> INLINE W field(W w) {
  EACH {
    if constexpr (from > to) w.v[i] = vshrq_n_u8(w.v[i], from - to);
    else if constexpr (from < to) w.v[i] = vshlq_n_u8(w.v[i], to - from);
    if constexpr (from < to || to > 0 || from + count < 8) w.v[i] = vandq_u8(w.v[i], vdupq_n_u8(((1 << count) - 1) << to));
  }
  return w;
}
INLINE W or_w(W a, W b) { EACH a.v[i] = vorrq_u8(a.v[i], b.v[i]); return a; }
INLINE W lookup(W index, const uint8_t* table) {
  const uint8x16_t t = vld1q_u8(table);
  EACH index.v[i] = vqtbl1q_u8(t, index.v[i]);
  return index;
}
template <int bits, int K> INLINE I dot4(I acc, W w, int8x16_t x) {
  EACH {
    const uint8x16_t u = bits == 8 ? veorq_u8(w.v[i], vdupq_n_u8(0x80)) : w.v[i];  // w - 128, as int8
    acc.v[i] = vdotq_laneq_s32(acc.v[i], vreinterpretq_s8_u8(u), x, K);
  }
  return acc;
}
template <int bits> INLINE I dot16(I acc, const W* w, const int8_t* x) {
  const int8x16_t all = vld1q_s8(x);
  acc = dot4<bits, 0>(acc, w[0], all), acc = dot4<bits, 1>(acc, w[1], all);
  return dot4<bits, 3>(dot4<bits, 2>(acc, w[2], all), w[3], all);
}
INLINE I offset_full(int32_t) { return splat_i(0); }

#if defined(CUTAWAY_I8MM)
// Two output rows times two rows of activations, 8 k of each, are one instruction: half as many as of dot products.
// The codes of 16 k, as pairs of output rows: 8 k of one, then of the other.
struct Pairs { int8x16_t k[2][2]; };  // by half of the 16 k, by half of the four output rows

template <int bits> INLINE int8x16_t signed_codes(uint32x4_t w) {
  const uint8x16_t u = vreinterpretq_u8_u32(w);
  return vreinterpretq_s8_u8(bits == 8 ? veorq_u8(u, vdupq_n_u8(0x80)) : u);  // w - 128
}

template <int bits> INLINE Pairs pairs(const W* w, int i) {
  Pairs p;
  for (int h = 0; h < 2; h++) {
    const uint32x4_t a = vreinterpretq_u32_u8(w[2 * h].v[i]), b = vreinterpretq_u32_u8(w[2 * h + 1].v[i]);
    p.k[h][0] = signed_codes<bits>(vzip1q_u32(a, b)), p.k[h][1] = signed_codes<bits>(vzip2q_u32(a, b));
  }
  return p;
}

#define CUTAWAY_DOT16_ROWS
template <int bits, int R> INLINE void dot16_rows(I* dot, const W* w, const int8_t* x, int apart) {
  EACH {
    const Pairs p = pairs<bits>(w, i);
    UNROLL(4)
    for (int r = 0; r + 1 < R; r += 2) {
      const int8_t *one = x + r * apart, *two = one + apart;
      int32x4_t sum[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};  // of two output rows: by one, by two, by one, by two
      for (int h = 0; h < 2; h++) {
        const int8x16_t pair = vcombine_s8(vld1_s8(one + 8 * h), vld1_s8(two + 8 * h));
        for (int o = 0; o < 2; o++) sum[o] = vmmlaq_s32(sum[o], p.k[h][o], pair);
      }
      dot[r].v[i] = vaddq_s32(dot[r].v[i], vuzp1q_s32(sum[0], sum[1]));
      dot[r + 1].v[i] = vaddq_s32(dot[r + 1].v[i], vuzp2q_s32(sum[0], sum[1]));
    }
  }
  if constexpr (R % 2) dot[R - 1] = dot16<bits>(dot[R - 1], w, x + (R - 1) * apart);
}
#endif

#undef EACH
}  // namespace cutaway::CUTAWAY_TIER
