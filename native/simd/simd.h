// The vector vocabulary that the kernels are written in, once per instruction set.
//
// Everything is 16 lanes wide, whatever the machine: F is 16 floats, I is 16 int32, W is 16 lanes
// of 4 bytes. A lane is an output row, a token or a head dimension; lanes never mix except in
// sum16 and max16. Each operation is one IEEE
// operation (fma is fused), so every tier computes the same bits. sum16 adds the upper half of the
// lanes to the lower, 16 -> 8 -> 4 -> 2 -> 1, everywhere.
//
// A tier defines: kVectors, how many of F the registers hold | load store set1 | add sub mul div fma
// max min select_lt sum16 max16 | load_half splat_half store_half load_bf16
// load_i8 load_u8 load_u4 load_u1 load_e8m0 load_e4m3 load_fp8 from_table store_i8 | splat_i
// shl_i to_float as_int (the bits) pow2 | load_w store_w field or_w lookup dot16 offset_full | dot16_rows, where it has something
// better than dot16 of each row; of AVX2, see linear_avx2.inc
#pragma once
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define INLINED __attribute__((always_inline))  // of a lambda
#define PRAGMA(words) _Pragma(#words)
// Put before a loop, it keeps the loop's numbers in registers; Clang knows it too. The generic tier has no such registers,
// and would take twice as long to compile.
#if defined(CUTAWAY_AVX512) || defined(CUTAWAY_AVX2) || defined(CUTAWAY_AVXVNNI) || defined(CUTAWAY_NEON) || \
    defined(CUTAWAY_I8MM) || defined(CUTAWAY_WASM)
#define UNROLL(times) PRAGMA(GCC unroll times)
#else
#define UNROLL(times)
#endif

#if defined(CUTAWAY_AVX512)
#include "avx512.h"
#elif defined(CUTAWAY_AVX2) || defined(CUTAWAY_AVXVNNI)
#include "avx2.h"
#elif defined(CUTAWAY_NEON) || defined(CUTAWAY_I8MM)
#include "neon.h"
#elif defined(CUTAWAY_WASM)
#include "wasm.h"
#else
#include "generic.h"
#endif

namespace cutaway::CUTAWAY_TIER {

#if !defined(CUTAWAY_DOT16_ROWS)
// Each of R rows of activations, `apart` bytes from each other, times the same 16 k of codes.
template <int bits, int R> INLINE void dot16_rows(I* dot, const W* w, const int8_t* x, int apart) {
  UNROLL(8)
  for (int r = 0; r < R; r++) dot[r] = dot16<bits>(dot[r], w, x + r * apart);
}
#endif

#if !defined(CUTAWAY_STORE_SUMS)
// What follows the bytes of a quant block of activations: `whole` is their sum, and `first` the first half of them.
INLINE void store_sums(float d, float whole, F first, ActBlock* x) {
  const float half = sum16(first);  // exact in any order
  const int32_t sums[3] = {(int32_t)whole, (int32_t)half, (int32_t)whole - (int32_t)half};
  for (int i = 0; i < 3; i++) x->d_sum[i] = d * (float)sums[i];
  x->d = d, x->minus_sum = -sums[0], x->minus_half[0] = -sums[1], x->minus_half[1] = -sums[2];
}
#endif
#if !defined(CUTAWAY_START_OF_HALF)
// Minus 2^N times the sum of a half.
template <int N> INLINE I start_of_half(const ActBlock& x, int half) { return shl_i<N>(splat_i(x.minus_half[half])); }
#endif

// The sum leaves no room for a fraction of |x| < 2^22: its lower bits are the nearest integer, ties to even.
constexpr float kNoFraction = 12582912.0f;
INLINE F round_even(F x) { return sub(add(x, set1(kNoFraction)), set1(kNoFraction)); }

// e^x for x <= 0; below -69 it is 0 and above is at least 2^-100, so that products with a half
// never underflow. NaN stays NaN. Degree-6 polynomial on |r| <= ln2/2, within 2 ulp. N vectors go together,
// since each operation waits for the one before it.
template <int N> INLINE void exp_nonpositive(F (&x)[N]) {
#define EACH UNROLL(4) for (int i = 0; i < N; i++)
  F n[N], r[N], y[N];
  EACH n[i] = add(mul(x[i], set1(1.44269504f)), set1(kNoFraction));
  EACH r[i] = fma(sub(n[i], set1(kNoFraction)), set1(-0.693145752f), x[i]);
  EACH r[i] = fma(sub(n[i], set1(kNoFraction)), set1(-1.42860677e-6f), r[i]);
  EACH y[i] = fma(set1(1.0f / 720), r[i], set1(1.0f / 120));
  EACH y[i] = fma(y[i], r[i], set1(1.0f / 24));
  EACH y[i] = fma(y[i], r[i], set1(1.0f / 6));
  EACH y[i] = fma(y[i], r[i], set1(0.5f));
  EACH y[i] = fma(y[i], r[i], set1(1.0f));
  EACH y[i] = fma(y[i], r[i], set1(1.0f));
  EACH x[i] = select_lt(x[i], set1(-69.0f), set1(0.0f), mul(y[i], pow2(as_int(n[i]))));
#undef EACH
}
INLINE F exp_nonpositive(F x) {
  F v[] = {x};
  exp_nonpositive(v);
  return v[0];
}

}  // namespace cutaway::CUTAWAY_TIER
