// AVX-512 with VNNI: each vector is one register.
#pragma once
#include "x86.h"

namespace cutaway::CUTAWAY_TIER {

constexpr int kVectors = 32;

using F = __m512;
using I = __m512i;
using W = __m512i;

INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
INLINE void store(float* p, F v) { _mm512_storeu_ps(p, v); }
INLINE F set1(float x) { return _mm512_set1_ps(x); }
INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
INLINE F select_lt(F a, F b, F yes, F no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
INLINE float sum16(F v) { return _mm512_reduce_add_ps(v); }
INLINE float max16(F v) { return _mm512_reduce_max_ps(v); }
INLINE F load_half(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
}
INLINE F splat_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_set1_epi16((short)*p)); }
INLINE void store_half(uint16_t* p, F v) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
INLINE F load_bf16(const uint16_t* p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
INLINE F load_u8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
INLINE F load_i8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
// 2^(e - 128) of bytes e, as ggml_e8m0_to_fp32_half: the two smallest are subnormal.
INLINE F load_e8m0(const uint8_t* p) {
  const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)), one = _mm512_set1_epi32(1);
  return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_slli_epi32(_mm512_sub_epi32(e, one), 23),
                                              _mm512_slli_epi32(_mm512_add_epi32(e, one), 21)));
}
// Half of what bytes of 4 bits of exponent and 3 of fraction stand for: as upper bits of a half, 2^7 too small.
INLINE F load_e4m3(const uint8_t* p) {
  const __m256i bits = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p)), 7);
  return mul(_mm512_cvtph_ps(bits), set1(128.0f));
}

// FP8, divided by 256: as a half its exponent is so much less.
INLINE F load_fp8(const uint8_t* p) {
  __m256i v = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p)), 8);
  return _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(v, 1), _mm256_set1_epi16((short)0xbf80)));
}
// Looks up 16 entries of a table of 16, by the 4 bits from SHIFT on of 16 bytes.
template <int SHIFT> INLINE F from_table(const float* table, const uint8_t* p) {
  __m512i v = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
  return _mm512_permutexvar_ps(_mm512_srli_epi32(v, SHIFT), load(table));
}
// Lane i has byte i's lower half, and lane i + 8 its upper; lane i has bit i of two bytes.
INLINE F load_u4(const uint8_t* p) {
  const __m128i x = _mm_loadl_epi64((const __m128i*)p);
  const __m128i codes = _mm_and_si128(_mm_unpacklo_epi64(x, _mm_srli_epi16(x, 4)), _mm_set1_epi8(15));
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes));
}
INLINE F load_u1(const uint8_t* p) {
  uint16_t bits;
  memcpy(&bits, p, 2);
  return _mm512_maskz_mov_ps(bits, _mm512_set1_ps(1));
}

INLINE void store_i8(int8_t* p, F v) {  // whole numbers, -128 … 127
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
}

INLINE I splat_i(int32_t x) { return _mm512_set1_epi32(x); }
template <int N> INLINE I shl_i(I v) { return _mm512_slli_epi32(v, N); }
INLINE F to_float(I v) { return _mm512_cvtepi32_ps(v); }
INLINE I as_int(F v) { return _mm512_castps_si512(v); }
INLINE F pow2(I n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}

INLINE W load_w(const uint8_t* p) { return _mm512_loadu_si512(p); }
INLINE void store_w(uint8_t* p, W w) { _mm512_storeu_si512(p, w); }
// Bits from … from + count - 1 of each byte, moved to bit `to`; the rest is 0.
template <int from, int count, int to> INLINE W field(W v) {
  if constexpr (from > to) v = _mm512_srli_epi16(v, from - to);
  else if constexpr (from < to) v = _mm512_slli_epi16(v, to - from);
  return _mm512_and_si512(v, _mm512_set1_epi8((char)(((1 << count) - 1) << to)));
}
INLINE W or_w(W a, W b) { return _mm512_or_si512(a, b); }
// Each byte, 0 … 15, becomes the table's entry.
INLINE W lookup(W index, const uint8_t* table) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)table)), index);
}
// acc + Σ over 16 k of w · x, four of them in each w, the same 16 int8 for every lane; w in 0 … 2^bits - 1.
// Codes of 8 bits stand for w - 128, and their sum starts at offset_full(-Σx). (Left to themselves,
// compilers load each four of x with an instruction of its own.)
template <int bits> INLINE I dot16(I acc, const W* w, const int8_t* x) {
  UNROLL(4)
  for (int i = 0; i < 4; i++)
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w[i]), "m"(*(const int8_t(*)[4])(x + 4 * i)));
  return acc;
}
INLINE I offset_full(int32_t minus_sum) { return shl_i<7>(splat_i(minus_sum)); }

}  // namespace cutaway::CUTAWAY_TIER
