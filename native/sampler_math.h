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

// luck.coin: the first word of Philox4x32-10 for the counter (0, position, redraw, 2), as a number in (0, 1).
inline double coin(uint64_t seed, uint64_t place) {
  uint32_t c[4] = {0, (uint32_t)place, (uint32_t)(place >> 32), 2};
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
    const uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k0, (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c[3] ^ k1, (uint32_t)p0};
    memcpy(c, next, sizeof c);
  }
  return (c[0] + 0.5) * 0x1p-32;
}

// luck.gumbel
inline double gumbel(uint32_t word) { return -exact_log(-exact_log((word + 0.5) * 0x1p-32)); }

}  // namespace cutaway
