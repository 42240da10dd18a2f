// AVX2 with FMA and F16C: each vector is two registers. With CUTAWAY_AVXVNNI, its dot product too; a test
// defines CUTAWAY_EVEX, to run that on machines that have it in AVX-512's encoding alone.
#pragma once
#include "x86.h"

namespace cutaway::CUTAWAY_TIER {

constexpr int kVectors = 8;

struct F { __m256 a, b; };
struct I { __m256i a, b; };
struct W { __m256i a, b; };

INLINE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE void store(float* p, F v) { _mm256_storeu_ps(p, v.a), _mm256_storeu_ps(p + 8, v.b); }
INLINE F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
INLINE F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
INLINE F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
INLINE F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
INLINE F fma(F x, F y, F z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
INLINE F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
INLINE F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
INLINE F select_lt(F x, F y, F yes, F no) {
  return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
INLINE float sum16(F v) {
  __m256 x8 = _mm256_add_ps(v.a, v.b);
  __m128 x4 = _mm_add_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps(x8, 1));
  __m128 x2 = _mm_add_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_add_ss(x2, _mm_movehdup_ps(x2)));
}
INLINE float max16(F v) {
  __m256 x8 = _mm256_max_ps(v.a, v.b);
  __m128 x4 = _mm_max_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps(x8, 1));
  __m128 x2 = _mm_max_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_max_ss(x2, _mm_movehdup_ps(x2)));
}
INLINE F load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
INLINE F splat_half(const uint16_t* p) {
  const __m256 x = _mm256_cvtph_ps(_mm_set1_epi16((short)*p));
  return {x, x};
}
INLINE void store_half(uint16_t* p, F v) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT));
}
INLINE __m256 bf16_8(const uint16_t* p) {
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
INLINE F load_bf16(const uint16_t* p) { return {bf16_8(p), bf16_8(p + 8)}; }
INLINE F load_u8(const uint8_t* p) {
  __m128i v = _mm_loadu_si128((const __m128i*)p);
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v)),
          _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(v, 8)))};
}
// Lane i has byte i's lower half, and lane i + 8 its upper; lane i has bit i of two bytes.
INLINE F load_u4(const uint8_t* p) {
  const __m128i v = _mm_loadl_epi64((const __m128i*)p), low = _mm_set1_epi8(15);
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_and_si128(v, low))),
          _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_and_si128(_mm_srli_epi16(v, 4), low)))};
}
INLINE __m256 bits_8(uint8_t byte) {
  const __m256i bit_masks = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(byte), bit_masks), bit_masks);
  return _mm256_and_ps(_mm256_castsi256_ps(set), _mm256_set1_ps(1));
}
INLINE F load_u1(const uint8_t* p) { return {bits_8(p[0]), bits_8(p[1])}; }
INLINE F load_i8(const uint8_t* p) {
  __m128i v = _mm_loadu_si128((const __m128i*)p);
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(v, 8)))};
}
INLINE __m256 e8m0_8(__m128i bytes) {
  const __m256i e = _mm256_cvtepu8_epi32(bytes), one = _mm256_set1_epi32(1);
  return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_slli_epi32(_mm256_sub_epi32(e, one), 23),
                                              _mm256_slli_epi32(_mm256_add_epi32(e, one), 21)));
}
INLINE F load_e8m0(const uint8_t* p) {
  const __m128i v = _mm_loadu_si128((const __m128i*)p);
  return {e8m0_8(v), e8m0_8(_mm_srli_si128(v, 8))};
}
INLINE F load_e4m3(const uint8_t* p) {
  const __m256i bits = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p)), 7);
  const F v = {_mm256_cvtph_ps(_mm256_castsi256_si128(bits)), _mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1))};
  return mul(v, set1(128.0f));
}

INLINE __m256 fp8_8(__m128i bytes) {
  __m128i v = _mm_srai_epi16(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 8), 1);
  return _mm256_cvtph_ps(_mm_and_si128(v, _mm_set1_epi16((short)0xbf80)));
}
INLINE F load_fp8(const uint8_t* p) {  // divided by 256: as a half its exponent is so much less
  __m128i v = _mm_loadu_si128((const __m128i*)p);
  return {fp8_8(v), fp8_8(_mm_srli_si128(v, 8))};
}
template <int SHIFT> INLINE __m256 from_table_8(const float* table, __m128i bytes) {
  __m256i v = _mm256_srli_epi32(_mm256_cvtepu8_epi32(bytes), SHIFT);
  __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), v);
  __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), v);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(v, 28)));
}
// Looks up 16 entries of a table of 16, by the 4 bits from SHIFT on of 16 bytes.
template <int SHIFT> INLINE F from_table(const float* table, const uint8_t* p) {
  __m128i v = _mm_loadu_si128((const __m128i*)p);
  return {from_table_8<SHIFT>(table, v), from_table_8<SHIFT>(table, _mm_srli_si128(v, 8))};
}

INLINE void store_i8(int8_t* p, F v) {  // whole numbers, -128 … 127
  __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(v.a), _mm256_cvtps_epi32(v.b));
  words = _mm256_permute4x64_epi64(words, 0xd8);
  __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128((__m128i*)p, bytes);
}

INLINE I splat_i(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
template <int N> INLINE I shl_i(I v) {
  return {_mm256_slli_epi32(v.a, N), _mm256_slli_epi32(v.b, N)};
}
INLINE __m256i splat_32(const void* p) {
  int32_t x;
  memcpy(&x, p, 4);
  return _mm256_set1_epi32(x);
}
INLINE F to_float(I v) { return {_mm256_cvtepi32_ps(v.a), _mm256_cvtepi32_ps(v.b)}; }
INLINE I as_int(F v) { return {_mm256_castps_si256(v.a), _mm256_castps_si256(v.b)}; }
INLINE __m256 pow2_8(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
INLINE F pow2(I n) { return {pow2_8(n.a), pow2_8(n.b)}; }

INLINE W load_w(const uint8_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
INLINE void store_w(uint8_t* p, W w) {  // GCC 12 takes twice as long with a memcpy
  _mm256_storeu_si256((__m256i*)p, w.a), _mm256_storeu_si256((__m256i*)(p + 32), w.b);
}
template <int from, int count, int to> INLINE __m256i field_32(__m256i v) {
  if constexpr (from > to) v = _mm256_srli_epi16(v, from - to);
  else if constexpr (from < to) v = _mm256_slli_epi16(v, to - from);
  return _mm256_and_si256(v, _mm256_set1_epi8((char)(((1 << count) - 1) << to)));
}
template <int from, int count, int to> INLINE W field(W v) {
  return {field_32<from, count, to>(v.a), field_32<from, count, to>(v.b)};
}
INLINE W or_w(W x, W y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
INLINE W lookup(W index, const uint8_t* table) {
  const __m256i twice = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)table));
  return {_mm256_shuffle_epi8(twice, index.a), _mm256_shuffle_epi8(twice, index.b)};
}

#ifdef CUTAWAY_AVXVNNI
INLINE __m256i dot_32(__m256i acc, __m256i w, __m256i x) {
#ifdef CUTAWAY_EVEX
  return _mm256_dpbusd_epi32(acc, w, x);
#else
  return _mm256_dpbusd_avx_epi32(acc, w, x);
#endif
}
INLINE I offset_full(int32_t minus_sum) { return shl_i<7>(splat_i(minus_sum)); }
#else
INLINE I offset_full(int32_t) { return splat_i(0); }
#define CUTAWAY_START_OF_HALF
template <int N> INLINE I start_of_half(const ActBlock& x, int half) {
  const __m256i sum = _mm256_madd_epi16(splat_32(&x.minus_pairs[1 + half]), _mm256_set1_epi16(1 << N));
  return {sum, sum};
}
#endif

}  // namespace cutaway::CUTAWAY_TIER
