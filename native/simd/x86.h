// What AVX2 and AVX-512 have in common.
#pragma once
#include <immintrin.h>

namespace cutaway::CUTAWAY_TIER {

// See simd.h; from the bytes. What the sums are made of comes in 16 bits: of k 0 and 1 of every four, and of k 2 and 3.
#define CUTAWAY_STORE_SUMS
template <class F> INLINE void store_sums(float d, float, F, ActBlock* x) {
  const __m128i first = _mm_maddubs_epi16(_mm_set1_epi8(1), _mm_loadu_si128((const __m128i*)x->q));
  const __m128i second = _mm_maddubs_epi16(_mm_set1_epi8(1), _mm_loadu_si128((const __m128i*)(x->q + 16)));
  __m128i halves = _mm_add_epi16(_mm_unpacklo_epi64(first, second), _mm_unpackhi_epi64(first, second));
  halves = _mm_add_epi16(halves, _mm_shuffle_epi32(halves, 0xb1));  // the first twice, the second twice
  const __m128i whole = _mm_add_epi16(halves, _mm_shuffle_epi32(halves, 0x4e));
  const __m128i pairs = _mm_blend_epi16(_mm_shuffle_epi32(halves, 0x80), whole, 0x0f);  // the whole, the whole, either half
  const __m128i sums = _mm_madd_epi16(pairs, _mm_set1_epi16(1)), minus_sums = _mm_sub_epi32(_mm_setzero_si128(), sums);
  const __m128 step = _mm_set1_ps(d);
  _mm_store_ps(&x->d, _mm_blend_ps(_mm_mul_ps(step, _mm_cvtepi32_ps(sums)), step, 1));
#if defined(CUTAWAY_AVX2)
  const __m128i minus_pairs = _mm_sub_epi16(_mm_setzero_si128(), pairs);
  _mm_store_si128((__m128i*)&x->minus_sum, _mm_blend_epi16(minus_pairs, minus_sums, 3));
#else
  _mm_store_si128((__m128i*)&x->minus_sum, _mm_shuffle_epi32(minus_sums, 0xf9));  // without the first, which is there twice
#endif
}

}  // namespace cutaway::CUTAWAY_TIER
