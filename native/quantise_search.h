// The search for scales: of many factors, the one whose codes have the least error.
//
// Four groups of weights are searched side by side, one to a lane, each summing in the order of its own
// weights: a group's result depends on nothing but its weights. Sources: `make_qkx2_quants`,
// `make_qkx3_quants`, `make_qx_quants`, `make_q3_quants`, `make_qp_quants` and
// `quantize_row_iq4_nl_impl` in `ggml-quants.c` of ggml.
#pragma once
#include "formats.h"
#include "quantise_numbers.h"

namespace cutaway {

constexpr int kSide = 4;  // groups that are searched side by side
typedef float Floats __attribute__((vector_size(4 * kSide)));
typedef int32_t Ints __attribute__((vector_size(4 * kSide)));

constexpr float kNothing = 1e-15f;  // a group whose largest number is smaller is a group of zeros

inline Floats all(float x) { return Floats{x, x, x, x}; }
inline Floats floats(Ints x) { return __builtin_convertvector(x, Floats); }
inline Floats pick(Ints mask, Floats yes, Floats no) { return (Floats)((mask & (Ints)yes) | (~mask & (Ints)no)); }
inline Ints pick(Ints mask, Ints yes, Ints no) { return (mask & yes) | (~mask & no); }
inline Floats magnitude(Floats x) { return (Floats)((Ints)x & 0x7FFFFFFF); }
inline Ints nearest(Floats x) { return ((Ints)(x + 12582912.0f) & 0x7FFFFF) - 0x400000; }
inline Ints clamp(Ints x, int low, int high) {
  x = pick(x < low, Ints{} + low, x);
  return pick(x > high, Ints{} + high, x);
}

// kSide groups of n numbers, which follow each other in memory: out[i] holds number i of each.
template <int n>
void side_by_side(const float* x, Floats* out) {
  for (int i = 0; i < n; i++)
    for (int lane = 0; lane < kSide; lane++) out[i][lane] = x[lane * n + i];
}

// Which factors are tried: (first + step · t + top) / range for t = 0 … last.
struct Tries {
  float first, step;
  int last;
};
constexpr Tries kWeighted{-0.9f, 0.05f, 36};  // with an importance matrix

// weight ≈ scale · code + low, where the code is factor · (weight - bottom), rounded.
struct Affine {
  Floats scale, low, factor, bottom;

  Ints code(Floats x, int top) const { return clamp(nearest(factor * (x - bottom)), 0, top); }
};
// top: the largest code; absolute: the error is summed as it is, not squared.
template <int n>
Affine affine(const Floats* x, const Floats* weights, int top, Tries tries, bool absolute);

// weight ≈ scale · code with codes from -top to top - 1: factor · weight, rounded. Both are 0 for nothing.
struct Symmetric {
  Floats scale, factor;

  // The code plus top, as it is stored; 0 where the group is nothing.
  Ints code(Floats x, int top) const {
    return pick(factor == 0, Ints{}, clamp(nearest(factor * x), -top, top - 1) + top);
  }
};
template <int n>
Symmetric symmetric(const Floats* x, const Floats* weights, int top);

// The same for codes of three bits, which are then improved one after another; codes as stored.
Floats three_bits(const Floats (&x)[16], Ints (&codes)[16]);

// Scales of count ≤ 16 numbers that are not negative, with codes up to top; 0 for nothing.
float positive(const float* x, const float* weights, int count, int top, uint8_t* codes);

// The index of the nearest to each x of IQ4_NL's sixteen values.
Ints nearest_in_table(Floats x);
// weight ≈ scale · value of the table; 0 for nothing.
Floats table_scale(const Floats (&x)[32], const Floats (&weights)[32]);

}  // namespace cutaway
