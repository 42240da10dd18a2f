// Quant blocks as files have them: each format's codes, scales and halves, of one row.
#pragma once
#include <stdint.h>
#include <string.h>

#include "formats.h"
#include "grids.h"

namespace cutaway {

// The codes of one row's 32 k, four to a word in the order of k, their byte scales and halves.
struct RowBlock {
  uint32_t code[kQuant / 4];
  uint8_t scale[2], minimum[2];  // of each sub-block, where they are bytes
  uint16_t d, d_min;             // halves; d_min of K formats negated
};

constexpr uint32_t kNibbles = 0x0f0f0f0fu, kPairs = 0x03030303u, kBits = 0x01010101u;

inline uint16_t half_at(const uint8_t* p) {
  uint16_t h;
  memcpy(&h, p, 2);
  return h;
}

// Four codes, or parts of codes, that are neighbours in the file.
inline uint32_t word_at(const uint8_t* p) {
  uint32_t w;
  memcpy(&w, p, 4);
  return w;
}

// Four bits, one to each byte.
inline uint32_t spread(uint32_t bits) { return (bits & 15) * 0x00204081u & kBits; }

// Four pairs, or triples, of bits, one to each byte.
inline uint32_t spread_pairs(uint32_t bits) {
  bits = (bits | bits << 12) & 0x000f000fu;
  return (bits | bits << 6) & kPairs;
}
inline uint32_t spread_triples(uint32_t bits) {
  bits = (bits | bits << 10) & 0x003f003fu;
  return (bits | bits << 5) & 0x07070707u;
}

// 6-bit scale and minimum of sub-block i of Q4_K and Q5_K.
inline void k_scale(const uint8_t* s, int i, RowBlock& row) {
  if (i < 4) {
    row.scale[0] = s[i] & 63, row.minimum[0] = s[i + 4] & 63;
  } else {
    row.scale[0] = (uint8_t)((s[i + 4] & 15) | (s[i - 4] >> 6) << 4);
    row.minimum[0] = (uint8_t)((s[i + 4] >> 4) | (s[i] >> 6) << 4);
  }
}

// 6-bit scale of sub-block i of Q3_K, less 32, as a byte.
inline uint8_t q3_scale(const uint8_t* s, int i) {
  const int lo = i < 8 ? s[i] & 15 : s[i - 8] >> 4, hi = s[8 + i % 4] >> 2 * (i / 4) & 3;
  return (uint8_t)((lo | hi << 4) - 32);
}

template <Format f>
void read_q4_q5(const uint8_t* p, RowBlock& row) {
  constexpr bool minimum = f == Q4_1 || f == Q5_1, five = f == Q5_0 || f == Q5_1;
  row.d = half_at(p), p += 2;
  if (minimum) row.d_min = half_at(p), p += 2;
  uint32_t high = 0;
  if (five) high = word_at(p), p += 4;
  for (int g = 0; g < 4; g++) {
    const uint32_t word = word_at(p + 4 * g);
    row.code[g] = (word & kNibbles) | spread(high >> 4 * g) << 4;
    row.code[g + 4] = (word >> 4 & kNibbles) | spread(high >> (16 + 4 * g)) << 4;
  }
}

inline void read_q8(const uint8_t* p, RowBlock& row) {
  row.d = half_at(p);
  for (int g = 0; g < 8; g++) row.code[g] = word_at(p + 2 + 4 * g) ^ 0x80808080u;
}

template <Format f>
void read_k4_k5(const uint8_t* p, int b, RowBlock& row) {
  row.d = half_at(p), row.d_min = half_at(p + 2) ^ 0x8000;
  k_scale(p + 4, b, row);
  const uint8_t *high = p + 16, *codes = p + (f == Q5_K ? 48 : 16) + b / 2 * 32;
  for (int g = 0; g < 8; g++) {
    row.code[g] = word_at(codes + 4 * g) >> (b % 2 ? 4 : 0) & kNibbles;
    if (f == Q5_K) row.code[g] |= (word_at(high + 4 * g) >> b & kBits) << 4;
  }
}

inline void read_k6(const uint8_t* p, int b, RowBlock& row) {
  row.d = half_at(p + 208);
  const int half = b / 4, quarter = b % 4;
  const uint8_t *lo = p + half * 64 + quarter % 2 * 32, *hi = p + 128 + half * 32;
  for (int i = 0; i < 2; i++) row.scale[i] = p[192 + 2 * b + i];
  for (int g = 0; g < 8; g++)
    row.code[g] = (word_at(lo + 4 * g) >> (quarter < 2 ? 0 : 4) & kNibbles) |
                  (word_at(hi + 4 * g) >> 2 * quarter & kPairs) << 4;
}

template <Format f>
void read_k2_k3(const uint8_t* p, int b, RowBlock& row) {
  const uint8_t* codes = p + (f == Q2_K ? 16 : 32) + b / 4 * 32;
  for (int g = 0; g < 8; g++) {
    row.code[g] = word_at(codes + 4 * g) >> 2 * (b % 4) & kPairs;
    if (f == Q3_K) row.code[g] |= (word_at(p + 4 * g) >> b & kBits) << 2;
  }
  row.d = half_at(p + (f == Q2_K ? 80 : 108));
  if (f == Q2_K) row.d_min = half_at(p + 82) ^ 0x8000;
  for (int i = 0; i < 2; i++) {
    const int s = 2 * b + i;
    row.scale[i] = f == Q2_K ? p[s] & 15 : q3_scale(p + 96, s);
    row.minimum[i] = f == Q2_K ? p[s] >> 4 : 0;
  }
}

// Nibbles: the first 16 k, then the other 16.
inline void read_nibbles(const uint8_t* p, RowBlock& row) {
  for (int g = 0; g < 4; g++) row.code[g] = word_at(p + 4 * g) & kNibbles, row.code[g + 4] = word_at(p + 4 * g) >> 4 & kNibbles;
}

inline void read_iq4_xs(const uint8_t* p, int b, RowBlock& row) {
  row.d = half_at(p);
  const int low = p[4 + b / 2] >> 4 * (b % 2) & 15, high = half_at(p + 2) >> 2 * b & 3;
  row.scale[0] = (uint8_t)((low | high << 4) - 32);
  read_nibbles(p + 8 + 16 * b, row);
}

// A scale of NVFP4 as 7 bits: ggml takes 7F for 0, and reads nothing from the highest bit.
inline uint8_t e4m3(uint8_t byte) { return byte == 0x7F ? 0 : byte & 0x7F; }

// Nibbles: the first 8 k of a sub-block, then the other 8.
inline void read_nvfp4(const uint8_t* p, int b, RowBlock& row) {
  for (int i = 0; i < 2; i++) {
    row.scale[i] = e4m3(p[2 * b + i]);
    const uint8_t* codes = p + 4 + 8 * (2 * b + i);
    for (int g = 0; g < 2; g++) {
      row.code[4 * i + g] = word_at(codes + 4 * g) & kNibbles;
      row.code[4 * i + g + 2] = word_at(codes + 4 * g) >> 4 & kNibbles;
    }
  }
}

// The eighth of eight signs makes the number of minuses even.
inline uint32_t eight_signs(uint32_t seven) { return seven | (uint32_t)__builtin_parity(seven) << 7; }

// Eight digits of 2 bits, and a bit above each, as 8 k.
inline void put_pattern(uint32_t digits, uint32_t above, uint32_t* code) {
  for (int g = 0; g < 2; g++) code[g] = spread_pairs(digits >> 8 * g & 255) | spread(above >> 4 * g) << 2;
}

inline uint8_t odd(uint32_t half) { return (uint8_t)(2 * half + 1); }

template <Format f>
void read_iq3(const uint8_t* p, int b, RowBlock& row) {
  constexpr bool xxs = f == IQ3_XXS;
  row.d = half_at(p);
  const uint8_t* names = p + 2 + 8 * b;
  const uint32_t word = xxs ? word_at(p + 66 + 4 * b) : 0, high = xxs ? 0 : p[66 + b];
  row.scale[0] = odd(xxs ? word >> 28 : (uint32_t)p[106 + b / 2] >> 4 * (b % 2) & 15);
  for (int g = 0; g < 8; g++) {
    const uint32_t eight = xxs ? eight_signs(word >> 7 * (g / 2) & 127) : p[74 + 4 * b + g / 2];
    const uint32_t digits = xxs ? kGridIQ3_XXS[names[g]] : kGridIQ3_S[names[g] | (high >> g & 1) << 8];
    row.code[g] = spread_triples(digits) | spread(eight >> 4 * (g % 2)) << 3;
  }
}

template <Format f>
void read_iq2(const uint8_t* p, int b, RowBlock& row) {
  row.d = half_at(p);
  if constexpr (f == IQ2_XXS) {
    const uint8_t* names = p + 2 + 8 * b;
    const uint32_t word = word_at(names + 4);
    row.scale[0] = odd(word >> 28);
    for (int i = 0; i < 4; i++)
      put_pattern(kGridIQ2_XXS[names[i]], eight_signs(word >> 7 * i & 127), row.code + 2 * i);
  } else {
    for (int i = 0; i < 2; i++) row.scale[i] = odd((uint32_t)p[(f == IQ2_XS ? 66 : 74) + b] >> 4 * i & 15);
    for (int i = 0; i < 4; i++) {
      const uint32_t name = f == IQ2_XS ? half_at(p + 2 + 8 * b + 2 * i)
                                        : p[2 + 4 * b + i] | ((uint32_t)p[66 + b] >> 2 * i & 3) << 8;
      if (f == IQ2_XS) put_pattern(kGridIQ2_XS[name & 511], eight_signs(name >> 9), row.code + 2 * i);
      else put_pattern(kGridIQ2_S[name], p[34 + 4 * b + i], row.code + 2 * i);
    }
  }
}

// The bit above a digit is set where 1/8 is taken away.
inline void read_iq1_s(const uint8_t* p, int b, RowBlock& row) {
  const uint32_t high = half_at(p + 34 + 2 * b);
  row.d = half_at(p), row.scale[0] = odd(high >> 12 & 7);
  for (int i = 0; i < 4; i++)
    put_pattern(kGridIQ1[p[2 + 4 * b + i] | (high >> 3 * i & 7) << 8], high >> 15 ? 255 : 0, row.code + 2 * i);
}

inline void read_iq1_m(const uint8_t* p, int b, RowBlock& row) {
  for (int i = 0; i < 4; i++) row.d |= (uint16_t)(half_at(p + 48 + 2 * i) >> 12 << 4 * i);  // a quarter in each
  for (int i = 0; i < 2; i++) row.scale[i] = odd(half_at(p + 48 + b / 2 * 2) >> (6 * (b % 2) + 3 * i) & 7);
  for (int i = 0; i < 4; i++) {
    const uint32_t high = p[32 + 2 * b + i / 2] >> 4 * (i % 2) & 15;
    put_pattern(kGridIQ1[p[4 * b + i] | (high & 7) << 8], high & 8 ? 255 : 0, row.code + 2 * i);
  }
}

// A byte is a fraction of 243: its n-th digit to the base 3 is what is left of 3^n times it, times 3, as a whole.
inline uint32_t digits_at(const uint8_t* p, int n) {
  constexpr uint8_t kPowers[] = {1, 3, 9, 27, 81};
  uint32_t word = 0;
  for (int i = 0; i < 4; i++) word |= ((uint8_t)(p[i] * kPowers[n]) * 3u >> 8) << 8 * i;
  return word;
}

inline void read_tq1(const uint8_t* p, int b, RowBlock& row) {
  row.d = half_at(p + 52);
  for (int g = 0; g < 8; g++) {
    const int sixteen = 2 * b + g / 4;  // of 16 k: ten from the first 32 bytes, five from 16, one from 4
    row.code[g] = sixteen < 10   ? digits_at(p + 4 * g, b)
                  : sixteen < 15 ? digits_at(p + 32 + 4 * (g % 4), sixteen - 10)
                                 : digits_at(p + 48, g % 4);
  }
}

inline void read_tq2(const uint8_t* p, int b, RowBlock& row) {
  row.d = half_at(p + 64);
  for (int g = 0; g < 8; g++) row.code[g] = word_at(p + b / 4 * 32 + 4 * g) >> 2 * (b % 4) & kPairs;
}

inline void read_q1(const uint8_t* p, int b, RowBlock& row) {
  row.d = half_at(p);
  for (int g = 0; g < 8; g++) row.code[g] = spread(word_at(p + 2 + 4 * b) >> 4 * g);
}

inline void read_q2(const uint8_t* p, int b, RowBlock& row) {
  row.d = half_at(p);
  for (int g = 0; g < 8; g++) row.code[g] = spread_pairs(p[2 + 8 * b + g]);
}

// Two codes to a byte, the first in the low half, after the numbers of a group.
inline void read_int4(const uint8_t* codes, int b, RowBlock& row) {
  for (int g = 0; g < 8; g++) {
    uint32_t x = half_at(codes + 16 * b + 2 * g);
    x = (x | x << 8) & 0x00ff00ffu;
    row.code[g] = (x | x << 4) & kNibbles;
  }
}

inline void read_int8(const uint8_t* codes, int b, uint32_t flipped, RowBlock& row) {
  for (int g = 0; g < 8; g++) row.code[g] = word_at(codes + 32 * b + 4 * g) ^ flipped;
}

// Quant block b of the file's block at p.
template <Format f>
void read_row(const uint8_t* p, int b, RowBlock& row) {
  if constexpr (f == Q8_0) read_q8(p, row);
  else if constexpr (f == IQ4_NL) row.d = half_at(p), read_nibbles(p + 2, row);
  else if constexpr (f == IQ4_XS) read_iq4_xs(p, b, row);
  else if constexpr (f == MXFP4) row.scale[0] = *p, read_nibbles(p + 1, row);
  else if constexpr (f == NVFP4) read_nvfp4(p, b, row);
  else if constexpr (f == IQ3_XXS || f == IQ3_S) read_iq3<f>(p, b, row);
  else if constexpr (f == IQ2_XXS || f == IQ2_XS || f == IQ2_S) read_iq2<f>(p, b, row);
  else if constexpr (f == IQ1_S) read_iq1_s(p, b, row);
  else if constexpr (f == IQ1_M) read_iq1_m(p, b, row);
  else if constexpr (f == TQ1_0) read_tq1(p, b, row);
  else if constexpr (f == TQ2_0) read_tq2(p, b, row);
  else if constexpr (f == Q1_0) read_q1(p, b, row);
  else if constexpr (f == Q2_0) read_q2(p, b, row);
  else if constexpr (f == Q2_K || f == Q3_K) read_k2_k3<f>(p, b, row);
  else if constexpr (f == Q4_K || f == Q5_K) read_k4_k5<f>(p, b, row);
  else if constexpr (f == Q6_K) read_k6(p, b, row);
  else if constexpr (f == INT4_G32 || f == INT4_G64 || f == INT4_G128) read_int4(p + 5, b, row);
  else if constexpr (f == INT8_G32 || f == INT8_G64 || f == INT8_G128) read_int8(p + 5, b, 0x80808080u, row);
  else if constexpr (f == AFFINE4_G32 || f == AFFINE4_G64 || f == AFFINE4_G128) read_int4(p + 8, b, row);
  else if constexpr (f == AFFINE8_G32 || f == AFFINE8_G64 || f == AFFINE8_G128) read_int8(p + 8, b, 0, row);
  else read_q4_q5<f>(p, row);
}

}  // namespace cutaway
