// WebAssembly's SIMD128: each vector is four registers. It has no fused multiply-add, so `fma_of_doubles` makes one: it
// adds doubles, and again with rounding to odd where the first sum may have met the middle between two floats.
//
// With relaxed instructions (-mrelaxed-simd) there is one, of most processors but not of all; whether it is that, and
// whether the dot product of whole numbers is exact, `probe` in web/probe.cpp finds out where it runs.
#pragma once
#include <wasm_simd128.h>

namespace cutaway::CUTAWAY_TIER {

constexpr int kVectors = 4;  // x86 engines have 16 registers

struct F { v128_t v[4]; };
struct I { v128_t v[4]; };
struct W { v128_t v[4]; };

#define EACH for (int i = 0; i < 4; i++)

INLINE F load(const float* p) { F r; EACH r.v[i] = wasm_v128_load(p + 4 * i); return r; }
INLINE void store(float* p, F a) { EACH wasm_v128_store(p + 4 * i, a.v[i]); }
INLINE F set1(float x) { F r; EACH r.v[i] = wasm_f32x4_splat(x); return r; }
INLINE F add(F a, F b) { EACH a.v[i] = wasm_f32x4_add(a.v[i], b.v[i]); return a; }
INLINE F sub(F a, F b) { EACH a.v[i] = wasm_f32x4_sub(a.v[i], b.v[i]); return a; }
INLINE F mul(F a, F b) { EACH a.v[i] = wasm_f32x4_mul(a.v[i], b.v[i]); return a; }
INLINE F div(F a, F b) { EACH a.v[i] = wasm_f32x4_div(a.v[i], b.v[i]); return a; }

// The product of two floats is exact as a double, and so the only error of a sum in doubles is its own rounding. Rounded
// again to a float it may end on the wrong side where the first rounding met the middle between two floats.
// Then the sum is made again, rounded to odd: its last bit says that something was lost (Boldo and Melquiond, 2008).
INLINE v128_t upper(v128_t x) { return wasm_i32x4_shuffle(x, x, 2, 3, 2, 3); }
INLINE v128_t wide(v128_t x) { return wasm_f64x2_promote_low_f32x4(x); }

INLINE v128_t sum_to_odd(v128_t p, v128_t c) {
  const v128_t s = wasm_f64x2_add(p, c), of_c = wasm_f64x2_sub(s, p);
  const v128_t residue = wasm_f64x2_add(wasm_f64x2_sub(p, wasm_f64x2_sub(s, of_c)), wasm_f64x2_sub(c, of_c));
  const v128_t zero = wasm_f64x2_splat(0), one = wasm_i64x2_splat(1);
  const v128_t more = wasm_f64x2_gt(residue, zero), less = wasm_f64x2_lt(residue, zero);  // neither of a NaN
  // Away from zero where s and what it lacks have one sign; by one, or by minus one.
  const v128_t minus = wasm_v128_xor(less, wasm_i64x2_shr(s, 63));
  const v128_t step = wasm_v128_or(minus, one);
  const v128_t is_even = wasm_i64x2_eq(wasm_v128_and(s, one), wasm_i64x2_splat(0));
  return wasm_i64x2_add(s, wasm_v128_and(step, wasm_v128_and(is_even, wasm_v128_or(more, less))));
}

// Where the middle between two floats may have been met: above the smallest normal number that is one pattern of the
// bits that a float has not, from there down any.
INLINE v128_t is_middle(v128_t sum) {
  return wasm_i64x2_eq(wasm_v128_and(sum, wasm_i64x2_splat(0x1fffffff)), wasm_i64x2_splat(0x10000000));
}
INLINE v128_t is_tiny(v128_t x) {
  return wasm_f32x4_le(wasm_f32x4_abs(x), wasm_f32x4_splat(1.17549435e-38f));  // to which the second may have come from below
}

INLINE v128_t narrow(v128_t low, v128_t high) {
  return wasm_i32x4_shuffle(wasm_f32x4_demote_f64x2_zero(low), wasm_f32x4_demote_f64x2_zero(high), 0, 1, 4, 5);
}

__attribute__((noinline)) static F fma_to_odd(F a, F b, F c) {
  EACH {
    const v128_t low = sum_to_odd(wasm_f64x2_mul(wide(a.v[i]), wide(b.v[i])), wide(c.v[i]));
    const v128_t high = sum_to_odd(wasm_f64x2_mul(wide(upper(a.v[i])), wide(upper(b.v[i]))), wide(upper(c.v[i])));
    c.v[i] = narrow(low, high);
  }
  return c;
}

INLINE F fma_of_doubles(F a, F b, F c) {
  F r;
  v128_t doubtful = wasm_i64x2_splat(0);
  EACH {
    const v128_t low = wasm_f64x2_add(wasm_f64x2_mul(wide(a.v[i]), wide(b.v[i])), wide(c.v[i]));
    const v128_t high = wasm_f64x2_add(wasm_f64x2_mul(wide(upper(a.v[i])), wide(upper(b.v[i]))), wide(upper(c.v[i])));
    r.v[i] = narrow(low, high);
    doubtful = wasm_v128_or(doubtful, wasm_v128_or(is_tiny(r.v[i]), wasm_v128_or(is_middle(low), is_middle(high))));
  }
  if (__builtin_expect(wasm_v128_any_true(doubtful), 0)) return fma_to_odd(a, b, c);
  return r;
}
#ifdef __wasm_relaxed_simd__
INLINE F fma(F a, F b, F c) {
  EACH c.v[i] = wasm_f32x4_relaxed_madd(a.v[i], b.v[i], c.v[i]);
  return c;
}
#else
INLINE F fma(F a, F b, F c) { return fma_of_doubles(a, b, c); }
#endif

// The second operand where the comparison fails, a NaN included, as on x86.
INLINE F max(F a, F b) { EACH a.v[i] = wasm_f32x4_pmax(b.v[i], a.v[i]); return a; }
INLINE F min(F a, F b) { EACH a.v[i] = wasm_f32x4_pmin(b.v[i], a.v[i]); return a; }
INLINE F select_lt(F a, F b, F yes, F no) {
  EACH no.v[i] = wasm_v128_bitselect(yes.v[i], no.v[i], wasm_f32x4_lt(a.v[i], b.v[i]));
  return no;
}
INLINE float sum16(F x) {
  const v128_t x4 = wasm_f32x4_add(wasm_f32x4_add(x.v[0], x.v[2]), wasm_f32x4_add(x.v[1], x.v[3]));
  const v128_t x2 = wasm_f32x4_add(x4, upper(x4));
  return wasm_f32x4_extract_lane(x2, 0) + wasm_f32x4_extract_lane(x2, 1);
}
INLINE float max16(F x) {
  float lanes[16];
  store(lanes, x);
  for (int i = 1; i < 16; i++) lanes[0] = lanes[i] > lanes[0] ? lanes[i] : lanes[0];
  return lanes[0];
}

// An exact product makes its exponent a float's, for subnormals too; infinity and NaN have the largest.
INLINE v128_t widen_half(v128_t h) {  // four of 32 bits
  const v128_t magnitude = wasm_i32x4_shl(wasm_v128_and(h, wasm_i32x4_splat(0x7fff)), 13);
  const v128_t sign = wasm_i32x4_shl(wasm_v128_and(h, wasm_i32x4_splat(0x8000)), 16);
  const v128_t value = wasm_f32x4_mul(magnitude, wasm_f32x4_splat(0x1p112f));
  const v128_t is_infinite = wasm_i32x4_ge(magnitude, wasm_i32x4_splat(31 << 23));
  const v128_t exponent = wasm_v128_and(is_infinite, wasm_i32x4_splat(0x7f800000));
  return wasm_v128_or(wasm_v128_or(value, exponent), sign);
}
INLINE F load_half(const uint16_t* p) { F r; EACH r.v[i] = widen_half(wasm_u32x4_load16x4(p + 4 * i)); return r; }
INLINE F splat_half(const uint16_t* p) {
  const v128_t x = widen_half(wasm_i32x4_splat(*p));
  return {{x, x, x, x}};
}
INLINE v128_t narrow_to_half(v128_t f) {  // the same steps as the generic tier's, all of them for each number
  const v128_t x = wasm_v128_and(f, wasm_i32x4_splat(0x7fffffff));
  const v128_t sign = wasm_v128_and(wasm_u32x4_shr(f, 16), wasm_i32x4_splat(0x8000));
  const v128_t odd = wasm_v128_and(wasm_u32x4_shr(x, 13), wasm_i32x4_splat(1));
  const v128_t normal = wasm_u32x4_shr(wasm_i32x4_add(wasm_i32x4_sub(x, wasm_i32x4_splat(0x38000000 - 0xfff)), odd), 13);
  const v128_t small = wasm_i32x4_sub(wasm_f32x4_add(x, wasm_f32x4_splat(0.5f)), wasm_i32x4_splat(0x3f000000));
  const v128_t nan = wasm_v128_or(wasm_i32x4_splat(0x7e00), wasm_v128_and(wasm_u32x4_shr(x, 13), wasm_i32x4_splat(0x3ff)));
  v128_t h = wasm_v128_bitselect(small, normal, wasm_i32x4_lt(x, wasm_i32x4_splat(0x38800000)));
  h = wasm_v128_bitselect(wasm_i32x4_splat(0x7c00), h, wasm_i32x4_ge(x, wasm_i32x4_splat(0x477ff000)));
  h = wasm_v128_bitselect(nan, h, wasm_i32x4_gt(x, wasm_i32x4_splat(0x7f800000)));
  return wasm_v128_or(h, sign);
}
INLINE void store_half(uint16_t* p, F a) {
  for (int i = 0; i < 4; i += 2)
    wasm_v128_store(p + 4 * i, wasm_u16x8_narrow_i32x4(narrow_to_half(a.v[i]), narrow_to_half(a.v[i + 1])));
}
INLINE F load_bf16(const uint16_t* p) {
  F r;
  EACH r.v[i] = wasm_i32x4_shl(wasm_u32x4_load16x4(p + 4 * i), 16);
  return r;
}

INLINE I widen_u8(v128_t bytes) {
  const v128_t low = wasm_u16x8_extend_low_u8x16(bytes), high = wasm_u16x8_extend_high_u8x16(bytes);
  return {{wasm_u32x4_extend_low_u16x8(low), wasm_u32x4_extend_high_u16x8(low), wasm_u32x4_extend_low_u16x8(high),
           wasm_u32x4_extend_high_u16x8(high)}};
}
INLINE I widen_i8(v128_t bytes) {
  const v128_t low = wasm_i16x8_extend_low_i8x16(bytes), high = wasm_i16x8_extend_high_i8x16(bytes);
  return {{wasm_i32x4_extend_low_i16x8(low), wasm_i32x4_extend_high_i16x8(low), wasm_i32x4_extend_low_i16x8(high),
           wasm_i32x4_extend_high_i16x8(high)}};
}
INLINE F to_float(I a) { F r; EACH r.v[i] = wasm_f32x4_convert_i32x4(a.v[i]); return r; }
INLINE F load_u8(const uint8_t* p) { return to_float(widen_u8(wasm_v128_load(p))); }
INLINE F load_i8(const uint8_t* p) { return to_float(widen_i8(wasm_v128_load(p))); }
// Lane i has byte i's lower half, and lane i + 8 its upper; lane i has bit i of two bytes.
INLINE F load_u4(const uint8_t* p) {
  const v128_t bytes = wasm_v128_load64_zero(p);
  const v128_t low = wasm_v128_and(bytes, wasm_i8x16_splat(15)), high = wasm_u8x16_shr(bytes, 4);
  return to_float(widen_u8(wasm_i64x2_shuffle(low, high, 0, 2)));
}
INLINE F load_u1(const uint8_t* p) {
  float wide[16];
  for (int i = 0; i < 16; i++) wide[i] = p[i / 8] >> i % 8 & 1;
  return load(wide);
}
INLINE F load_e8m0(const uint8_t* p) {
  const I e = widen_u8(wasm_v128_load(p));
  F r;
  EACH {
    const v128_t normal = wasm_i32x4_shl(wasm_i32x4_sub(e.v[i], wasm_i32x4_splat(1)), 23);
    const v128_t subnormal = wasm_i32x4_shl(wasm_i32x4_add(e.v[i], wasm_i32x4_splat(1)), 21);  // of 0 and 1
    r.v[i] = wasm_v128_bitselect(subnormal, normal, wasm_i32x4_lt(e.v[i], wasm_i32x4_splat(2)));
  }
  return r;
}
INLINE F load_e4m3(const uint8_t* p) {
  uint16_t halves[16];
  for (int i = 0; i < 16; i++) halves[i] = (uint16_t)(p[i] << 7);
  return mul(load_half(halves), set1(128.0f));
}
INLINE F load_fp8(const uint8_t* p) {  // divided by 256: as a half its exponent is so much less
  uint16_t halves[16];
  for (int i = 0; i < 16; i++) halves[i] = (uint16_t)((p[i] & 128) << 8 | (p[i] & 127) << 7);
  return load_half(halves);
}
// Looks up 16 entries of a table of 16, by the 4 bits from SHIFT on of 16 bytes.
template <int SHIFT> INLINE F from_table(const float* table, const uint8_t* p) {
  float wide[16];
  for (int i = 0; i < 16; i++) wide[i] = table[p[i] >> SHIFT & 15];
  return load(wide);
}

INLINE I splat_i(int32_t x) { I r; EACH r.v[i] = wasm_i32x4_splat(x); return r; }
template <int N> INLINE I shl_i(I a) { EACH a.v[i] = wasm_i32x4_shl(a.v[i], N); return a; }
INLINE I as_int(F a) { I r; EACH r.v[i] = a.v[i]; return r; }
INLINE void store_i8(int8_t* p, F v) {  // whole numbers, -128 … 127
  I n;
  EACH n.v[i] = wasm_i32x4_trunc_sat_f32x4(v.v[i]);
  const v128_t low = wasm_i16x8_narrow_i32x4(n.v[0], n.v[1]), high = wasm_i16x8_narrow_i32x4(n.v[2], n.v[3]);
  wasm_v128_store(p, wasm_i8x16_narrow_i16x8(low, high));
}
INLINE F pow2(I n) {
  F r;
  EACH r.v[i] = wasm_i32x4_shl(wasm_i32x4_add(n.v[i], wasm_i32x4_splat(127)), 23);
  return r;
}

INLINE W load_w(const uint8_t* p) { W r; EACH r.v[i] = wasm_v128_load(p + 16 * i); return r; }
INLINE void store_w(uint8_t* p, W w) { EACH wasm_v128_store(p + 16 * i, w.v[i]); }
template <int from, int count, int to> INLINE W field(W w) {
  EACH {  // there are shifts of 16 bits only; what crosses into a neighbour is masked out
    if constexpr (from > to) w.v[i] = wasm_u16x8_shr(w.v[i], from - to);
    else if constexpr (from < to) w.v[i] = wasm_i16x8_shl(w.v[i], to - from);
    if constexpr (from != to || from + count < 8) w.v[i] = wasm_v128_and(w.v[i], wasm_i8x16_splat((int8_t)(((1 << count) - 1) << to)));
  }
  return w;
}
INLINE W or_w(W a, W b) { EACH a.v[i] = wasm_v128_or(a.v[i], b.v[i]); return a; }
INLINE W lookup(W index, const uint8_t* table) {
  const v128_t t = wasm_v128_load(table);
  EACH index.v[i] = wasm_i8x16_swizzle(t, index.v[i]);
  return index;
}
// Two products each of 16 bits are added at once; of a lane there are two such pairs, which are added at the end.
INLINE I dot16_of_pairs(I acc, const W* w, const int8_t* x) {
  v128_t low[4], high[4];
  for (int k = 0; k < 4; k++) {
    const v128_t four = wasm_i16x8_extend_low_i8x16(wasm_v128_load32_splat(x + 4 * k));
    EACH {
      const v128_t a = wasm_i32x4_dot_i16x8(wasm_u16x8_extend_low_u8x16(w[k].v[i]), four);
      const v128_t b = wasm_i32x4_dot_i16x8(wasm_u16x8_extend_high_u8x16(w[k].v[i]), four);
      low[i] = k ? wasm_i32x4_add(low[i], a) : a, high[i] = k ? wasm_i32x4_add(high[i], b) : b;
    }
  }
  EACH {
    const v128_t even = wasm_i32x4_shuffle(low[i], high[i], 0, 2, 4, 6), odd = wasm_i32x4_shuffle(low[i], high[i], 1, 3, 5, 7);
    acc.v[i] = wasm_i32x4_add(acc.v[i], wasm_i32x4_add(even, odd));
  }
  return acc;
}
template <int bits> INLINE I dot16(I acc, const W* w, const int8_t* x) {
#ifdef __wasm_relaxed_simd__
  if constexpr (bits < 8) {  // what eight bits would give is left open, of seven every processor's is exact
    for (int k = 0; k < 4; k++) {
      const v128_t four = wasm_v128_load32_splat(x + 4 * k);
      EACH acc.v[i] = wasm_i32x4_relaxed_dot_i8x16_i7x16_add(four, w[k].v[i], acc.v[i]);
    }
    return acc;
  }
#endif
  return dot16_of_pairs(acc, w, x);
}
INLINE I offset_full(int32_t minus_sum) { return shl_i<7>(splat_i(minus_sum)); }

#undef EACH
}  // namespace cutaway::CUTAWAY_TIER
