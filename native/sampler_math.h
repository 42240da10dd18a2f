// The order of tokens as one number each, and luck from a word, exactly: bits equal to the twin's.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace cutaway {

// A candidate's place in a row, best first: logit descending above, index below.
inline uint64_t key_of(float logit, size_t index) {
  const float x = logit + 0.0f;  // one zero, not two
  uint32_t bits;
  memcpy(&bits, &x, 4);
  const uint32_t ascending = bits ^ (bits >> 31 ? 0xFFFFFFFFu : 0x80000000u);
  return (uint64_t)~ascending << 32 | (uint32_t)index;
}

inline float logit_of(uint64_t key) {
  const uint32_t ascending = ~(uint32_t)(key >> 32);
  const uint32_t bits = ascending ^ (ascending >> 31 ? 0x80000000u : 0xFFFFFFFFu);
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// fixed_math.log
inline double exact_log(double x) {
  int e;
  double m = frexp(x, &e);
  if (m < 0.7071067811865476) m *= 2.0, e -= 1;
  const double s = (m - 1.0) / (m + 1.0), s2 = s * s;
  double y = 1.0 / 23;
  for (int n = 21; n > 0; n -= 2) y = y * s2 + 1.0 / n;
  return e * 6.93147180369123816490e-01 + (e * 1.90821492927058770002e-10 + 2.0 * s * y);
}

// luck.gumbel
inline double gumbel(uint32_t word) { return -exact_log(-exact_log((word + 0.5) * 0x1p-32)); }

}  // namespace cutaway
