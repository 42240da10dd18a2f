#include "pack.h"

#include <string.h>

#include <atomic>
#include <iterator>
#include <stdexcept>
#include <string>

#include "grids.h"

namespace cutaway {

namespace {

// The codes of one row's 32 k, four to a word in the order of k, their byte scales and halves.
struct Row {
  uint32_t code[kQuant / 4];
  uint8_t scale[2], minimum[2];  // of each sub-block, where they are bytes
  uint16_t d, d_min;             // halves; d_min of K formats negated
};

constexpr uint32_t kNibbles = 0x0f0f0f0fu, kPairs = 0x03030303u, kBits = 0x01010101u;

uint16_t half_at(const uint8_t* p) {
  uint16_t h;
  memcpy(&h, p, 2);
  return h;
}

// Four codes, or parts of codes, that are neighbours in the file.
uint32_t word_at(const uint8_t* p) {
  uint32_t w;
  memcpy(&w, p, 4);
  return w;
}

// Four bits, one to each byte.
uint32_t spread(uint32_t bits) { return (bits & 15) * 0x00204081u & kBits; }

// Four pairs, or triples, of bits, one to each byte.
uint32_t spread_pairs(uint32_t bits) {
  bits = (bits | bits << 12) & 0x000f000fu;
  return (bits | bits << 6) & kPairs;
}
uint32_t spread_triples(uint32_t bits) {
  bits = (bits | bits << 10) & 0x003f003fu;
  return (bits | bits << 5) & 0x07070707u;
}

// 6-bit scale and minimum of sub-block i of Q4_K and Q5_K.
void k_scale(const uint8_t* s, int i, Row& row) {
  if (i < 4) {
    row.scale[0] = s[i] & 63, row.minimum[0] = s[i + 4] & 63;
  } else {
    row.scale[0] = (uint8_t)((s[i + 4] & 15) | (s[i - 4] >> 6) << 4);
    row.minimum[0] = (uint8_t)((s[i + 4] >> 4) | (s[i] >> 6) << 4);
  }
}

// 6-bit scale of sub-block i of Q3_K, less 32, as a byte.
uint8_t q3_scale(const uint8_t* s, int i) {
  const int lo = i < 8 ? s[i] & 15 : s[i - 8] >> 4, hi = s[8 + i % 4] >> 2 * (i / 4) & 3;
  return (uint8_t)((lo | hi << 4) - 32);
}

template <Format f>
void read_q4_q5(const uint8_t* p, Row& row) {
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

void read_q8(const uint8_t* p, Row& row) {
  row.d = half_at(p);
  for (int g = 0; g < 8; g++) row.code[g] = word_at(p + 2 + 4 * g) ^ 0x80808080u;
}

template <Format f>
void read_k4_k5(const uint8_t* p, int b, Row& row) {
  row.d = half_at(p), row.d_min = half_at(p + 2) ^ 0x8000;
  k_scale(p + 4, b, row);
  const uint8_t *high = p + 16, *codes = p + (f == Q5_K ? 48 : 16) + b / 2 * 32;
  for (int g = 0; g < 8; g++) {
    row.code[g] = word_at(codes + 4 * g) >> (b % 2 ? 4 : 0) & kNibbles;
    if (f == Q5_K) row.code[g] |= (word_at(high + 4 * g) >> b & kBits) << 4;
  }
}

void read_k6(const uint8_t* p, int b, Row& row) {
  row.d = half_at(p + 208);
  const int half = b / 4, quarter = b % 4;
  const uint8_t *lo = p + half * 64 + quarter % 2 * 32, *hi = p + 128 + half * 32;
  for (int i = 0; i < 2; i++) row.scale[i] = p[192 + 2 * b + i];
  for (int g = 0; g < 8; g++)
    row.code[g] = (word_at(lo + 4 * g) >> (quarter < 2 ? 0 : 4) & kNibbles) |
                  (word_at(hi + 4 * g) >> 2 * quarter & kPairs) << 4;
}

template <Format f>
void read_k2_k3(const uint8_t* p, int b, Row& row) {
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
void read_nibbles(const uint8_t* p, Row& row) {
  for (int g = 0; g < 4; g++) row.code[g] = word_at(p + 4 * g) & kNibbles, row.code[g + 4] = word_at(p + 4 * g) >> 4 & kNibbles;
}

void read_iq4_xs(const uint8_t* p, int b, Row& row) {
  row.d = half_at(p);
  const int low = p[4 + b / 2] >> 4 * (b % 2) & 15, high = half_at(p + 2) >> 2 * b & 3;
  row.scale[0] = (uint8_t)((low | high << 4) - 32);
  read_nibbles(p + 8 + 16 * b, row);
}

// A scale of NVFP4 as 7 bits: ggml takes 7F for 0, and reads nothing from the highest bit.
uint8_t e4m3(uint8_t byte) { return byte == 0x7F ? 0 : byte & 0x7F; }

// Nibbles: the first 8 k of a sub-block, then the other 8.
void read_nvfp4(const uint8_t* p, int b, Row& row) {
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
uint32_t eight_signs(uint32_t seven) { return seven | (uint32_t)__builtin_parity(seven) << 7; }

// Eight digits of 2 bits, and a bit above each, as 8 k.
void put_pattern(uint32_t digits, uint32_t above, uint32_t* code) {
  for (int g = 0; g < 2; g++) code[g] = spread_pairs(digits >> 8 * g & 255) | spread(above >> 4 * g) << 2;
}

uint8_t odd(uint32_t half) { return (uint8_t)(2 * half + 1); }

template <Format f>
void read_iq3(const uint8_t* p, int b, Row& row) {
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
void read_iq2(const uint8_t* p, int b, Row& row) {
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
void read_iq1_s(const uint8_t* p, int b, Row& row) {
  const uint32_t high = half_at(p + 34 + 2 * b);
  row.d = half_at(p), row.scale[0] = odd(high >> 12 & 7);
  for (int i = 0; i < 4; i++)
    put_pattern(kGridIQ1[p[2 + 4 * b + i] | (high >> 3 * i & 7) << 8], high >> 15 ? 255 : 0, row.code + 2 * i);
}

void read_iq1_m(const uint8_t* p, int b, Row& row) {
  for (int i = 0; i < 4; i++) row.d |= (uint16_t)(half_at(p + 48 + 2 * i) >> 12 << 4 * i);  // a quarter in each
  for (int i = 0; i < 2; i++) row.scale[i] = odd(half_at(p + 48 + b / 2 * 2) >> (6 * (b % 2) + 3 * i) & 7);
  for (int i = 0; i < 4; i++) {
    const uint32_t high = p[32 + 2 * b + i / 2] >> 4 * (i % 2) & 15;
    put_pattern(kGridIQ1[p[4 * b + i] | (high & 7) << 8], high & 8 ? 255 : 0, row.code + 2 * i);
  }
}

// A byte is a fraction of 243: its n-th digit to the base 3 is what is left of 3^n times it, times 3, as a whole.
uint32_t digits_at(const uint8_t* p, int n) {
  constexpr uint8_t kPowers[] = {1, 3, 9, 27, 81};
  uint32_t word = 0;
  for (int i = 0; i < 4; i++) word |= ((uint8_t)(p[i] * kPowers[n]) * 3u >> 8) << 8 * i;
  return word;
}

void read_tq1(const uint8_t* p, int b, Row& row) {
  row.d = half_at(p + 52);
  for (int g = 0; g < 8; g++) {
    const int sixteen = 2 * b + g / 4;  // of 16 k: ten from the first 32 bytes, five from 16, one from 4
    row.code[g] = sixteen < 10   ? digits_at(p + 4 * g, b)
                  : sixteen < 15 ? digits_at(p + 32 + 4 * (g % 4), sixteen - 10)
                                 : digits_at(p + 48, g % 4);
  }
}

void read_tq2(const uint8_t* p, int b, Row& row) {
  row.d = half_at(p + 64);
  for (int g = 0; g < 8; g++) row.code[g] = word_at(p + b / 4 * 32 + 4 * g) >> 2 * (b % 4) & kPairs;
}

void read_q1(const uint8_t* p, int b, Row& row) {
  row.d = half_at(p);
  for (int g = 0; g < 8; g++) row.code[g] = spread(word_at(p + 2 + 4 * b) >> 4 * g);
}

void read_q2(const uint8_t* p, int b, Row& row) {
  row.d = half_at(p);
  for (int g = 0; g < 8; g++) row.code[g] = spread_pairs(p[2 + 8 * b + g]);
}

// Two codes to a byte, the first in the low half, after a float and a byte.
void read_int4(const uint8_t* p, int b, Row& row) {
  for (int g = 0; g < 8; g++) {
    uint32_t x = half_at(p + 5 + 16 * b + 2 * g);
    x = (x | x << 8) & 0x00ff00ffu;
    row.code[g] = (x | x << 4) & kNibbles;
  }
}

void read_int8(const uint8_t* p, int b, Row& row) {
  for (int g = 0; g < 8; g++) row.code[g] = word_at(p + 5 + 32 * b + 4 * g) ^ 0x80808080u;
}

// Quant block b of the file's block at p.
template <Format f>
void read_row(const uint8_t* p, int b, Row& row) {
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
  else if constexpr (f == INT4_G32 || f == INT4_G64 || f == INT4_G128) read_int4(p, b, row);
  else if constexpr (f == INT8_G32 || f == INT8_G64 || f == INT8_G128) read_int8(p, b, row);
  else read_q4_q5<f>(p, row);
}

void put_half(uint8_t* p, int row, uint16_t half) { memcpy(p + 2 * row, &half, 2); }
void put_word(uint8_t* p, int row, uint32_t word) { memcpy(p + 4 * row, &word, 4); }

// The plane that has the bits from `from` on of one row's codes.
template <int bits>
void write_plane(const Row& r, int from, int lane, uint8_t* p) {
  uint32_t loads[bits] = {};
#pragma GCC unroll 8
  for (int g = 0; g < kQuant / 4; g++) {
    constexpr uint32_t kMask = 0x01010101u * ((1 << bits) - 1);
    loads[place(bits, g).load / 64] |= (r.code[g] >> from & kMask) << place(bits, g).bit;
  }
  for (int i = 0; i < bits; i++) put_word(p + 64 * i, lane, loads[i]);
}

// Lay one row's quant block into its lane of a panel's quant block.
template <Format f>
void write_lane(const Row& r, int lane, uint8_t* p) {
  constexpr Layout l = kLayouts[f];
  constexpr int lower = lower_bits(l.bits), upper = upper_bits(l.bits);
  write_plane<lower>(r, 0, lane, p);
  if constexpr (upper > 0) write_plane<upper>(r, lower, lane, p + 64 * lower);
  uint8_t* s = p + code_bytes(l);
  if (l.scale == Scale::kHalf) {
    put_half(s, lane, r.d);
    if (l.minima) put_half(s + 32, lane, r.d_min);
    return;
  }
  constexpr int subs = scale_bytes(l) == 0 ? 0 : kQuant / l.sub;
  for (int i = 0; i < subs; i++) {
    s[16 * i + lane] = r.scale[i];
    if (l.minima) s[16 * (subs + i) + lane] = r.minimum[i];
  }
}

// One panel, of blocks of so many bytes: all lanes of one before the next, so that each cache line is filled at once.
template <Format f, int kBytes>
void pack_panel(const uint8_t* source, int lanes, int cols, uint8_t* out) {
  constexpr Layout l = kLayouts[f];
  const int count = cols / (l.blocks * kQuant);
  const size_t row_bytes = (size_t)count * kBytes;
  for (int s = 0; s < count; s++, source += kBytes) {
    for (int lane = 0; lane < lanes; lane++) {
      const uint8_t* p = source + lane * row_bytes;
      uint8_t* to = out + header_bytes(l);
      for (int b = 0; b < l.blocks; b++, to += block_bytes(l)) {
        Row row{};
        read_row<f>(p, b, row);
        if (l.scale == Scale::kGroup && b == 0) {
          memcpy(out + 4 * lane, p, 4), out[64 + lane] = p[4];
        } else if (has_header(l) && b == 0) {
          put_half(out, lane, row.d);
          if (l.minima) put_half(out + 32, lane, row.d_min);
        }
        write_lane<f>(row, lane, to);
      }
    }
    out += header_bytes(l) + l.blocks * block_bytes(l);
  }
}

// One panel, of groups of so many bytes: a float and codes.
template <int kGroup, int kBytes>
void pack_float_group_panel(const uint8_t* source, int lanes, int cols, uint8_t* out) {
  constexpr int codes = kBytes - 4;
  const int count = cols / kGroup;
  for (int g = 0; g < count; g++, source += kBytes) {
    for (int lane = 0; lane < lanes; lane++) {
      const uint8_t* p = source + (size_t)lane * count * kBytes;
      memcpy(out + 4 * lane, p, 4);
      for (int i = 0; i < codes; i++) out[64 + kLanes * i + lane] = p[4 + i];
    }
    out += 64 + kLanes * codes;
  }
}

template <int kBytes>
void pack_float_panel(const uint8_t* source, int lanes, int cols, uint8_t* out) {
  for (int lane = 0; lane < lanes; lane++)
    for (int k = 0; k < cols; k++, source += kBytes) memcpy(out + ((size_t)k * kLanes + lane) * kBytes, source, kBytes);
}

float half_to_float(uint16_t h) {
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  float value = exponent ? __builtin_ldexpf((float)(1024 + fraction), exponent - 25)
                         : __builtin_ldexpf((float)fraction, -24);
  if (exponent == 31) value = fraction ? __builtin_nanf("") : __builtin_inff();
  return h & 0x8000 ? -value : value;
}

float e8m0_to_float(uint8_t e) { return __builtin_ldexpf(1, e - 128); }
float e4m3_to_float(uint8_t e) { return half_to_float((uint16_t)(e << 7)) * 128; }

int code_in(int bits, const uint8_t* plane, int lane, int k) {
  const Place at = place(bits, k / 4);
  return plane[at.load + 4 * lane + k % 4] >> at.bit & ((1 << bits) - 1);
}

template <Format F>
float code_value(const uint8_t* block, int lane, int k) {
  constexpr Layout l = kLayouts[F];
  constexpr int lower = lower_bits(l.bits), upper = upper_bits(l.bits);
  int code = code_in(lower, block, lane, k);
  if constexpr (upper > 0) code |= code_in(upper, block + 64 * lower, lane, k) << lower;
  if constexpr (l.values != nullptr) return l.values[code];
  return (float)(l.offset < 0 ? code : code - (1 << l.offset));
}

// Of the sub-block that has its byte at p; d is the half before it.
template <Format F>
float scale_value(const uint8_t* p, float d) {
  constexpr Layout l = kLayouts[F];
  if constexpr (l.scale == Scale::kShared || l.scale == Scale::kGroup) return d;
  else if constexpr (l.scale == Scale::kE8M0) return e8m0_to_float(*p);
  else if constexpr (l.scale == Scale::kE4M3) return e4m3_to_float(*p);
  else return d * (l.minima ? (float)*p : (float)(int8_t)*p);
}

template <Format F>
void decode_lane(const uint8_t* p, int lane, int cols, float* out) {
  constexpr Layout l = kLayouts[F];
  constexpr int subs = kQuant / l.sub;
  float d = 0, d_min = 0;
  for (int b = 0; b < cols / kQuant; b++, p += block_bytes(l), out += kQuant) {
    if (has_header(l) && b % l.blocks == 0) {
      d = half_to_float(half_at(p + 2 * lane)) * l.unit;
      if (l.scale == Scale::kGroup) memcpy(&d, p + 4 * lane, 4), d_min = (float)(int8_t)p[64 + lane];
      else if (l.minima) d_min = half_to_float(half_at(p + 32 + 2 * lane));
      p += header_bytes(l);
    }
    const uint8_t* s = p + code_bytes(l);
    for (int sub = 0; sub < subs; sub++) {
      float scale, minimum = 0;
      if constexpr (l.scale == Scale::kHalf) {
        scale = half_to_float(half_at(s + 2 * lane));
        if (l.minima) minimum = half_to_float(half_at(s + 32 + 2 * lane));
      } else {
        scale = scale_value<F>(s + 16 * sub + lane, d);
        if (l.scale == Scale::kGroup) minimum = d_min;
        else if (l.minima) minimum = d_min * (float)s[16 * (subs + sub) + lane];
      }
#pragma GCC unroll 32
      for (int k = 0; k < l.sub; k++) {
        const float code = code_value<F>(p, lane, sub * l.sub + k);
        if (l.scale == Scale::kGroup) out[sub * l.sub + k] = scale * (code - minimum);
        else out[sub * l.sub + k] = l.minima ? scale * code + minimum : scale * code;
      }
    }
  }
}

template <Format F>
void decode_float_lane(const uint8_t* p, int lane, int cols, float* out) {
  for (int k = 0; k < cols; k++) {
    const uint8_t* at = p + ((size_t)k * kLanes + lane) * (F == F32 ? 4 : 2);
    const uint32_t wide = (uint32_t)half_at(at) << 16;
    if (F == F16) out[k] = half_to_float(half_at(at));
    else memcpy(out + k, F == F32 ? (const void*)at : &wide, 4);
  }
}

float fp8_to_float(uint8_t b) {
  if ((b & 127) == 127) return b & 128 ? -__builtin_nanf("") : __builtin_nanf("");
  return 256 * half_to_float((uint16_t)((b & 128) << 8 | (b & 127) << 7));
}

template <Format F>
void decode_float_group_lane(const uint8_t* p, int lane, int cols, float* out) {
  constexpr int group = kFloatGroups[F - FP8_G32], bytes = F == NF4 ? group / 2 : group;
  for (int begin = 0; begin < cols; begin += group, p += 64 + kLanes * bytes) {
    float scale;
    memcpy(&scale, p + 4 * lane, 4);
    for (int k = 0; k < group; k++) {
      const uint8_t code = p[64 + kLanes * (F == NF4 ? k / 2 : k) + lane];
      *out++ = scale * (F == NF4 ? kNF4[code >> k % 2 * 4 & 15] : fp8_to_float(code));
    }
  }
}

// A format as GGUF has it, or as folders get it, and how it gets into panels and out of them.
struct Kind {
  const char* name;
  int elements, bytes;  // of a quant block or super-block
  void (*pack_panel)(const uint8_t* source, int lanes, int cols, uint8_t* out);
  void (*decode_lane)(const uint8_t* panel, int lane, int cols, float* out);
};

template <Format f, int kBytes> constexpr Kind kind(const char* name) {
  if constexpr (is_grouped_float(f)) {
    constexpr int group = kFloatGroups[f - FP8_G32];
    return {name, group, kBytes, pack_float_group_panel<group, kBytes>, decode_float_group_lane<f>};
  } else if constexpr (is_float(f)) return {name, 1, kBytes, pack_float_panel<kBytes>, decode_float_lane<f>};
  else return {name, kQuant * kLayouts[f].blocks, kBytes, pack_panel<f, kBytes>, decode_lane<f>};
}

constexpr Kind kKinds[] = {
    kind<Q4_0, 18>("Q4_0"),  kind<Q4_1, 20>("Q4_1"),  kind<Q5_0, 22>("Q5_0"),  kind<Q5_1, 24>("Q5_1"),
    kind<Q8_0, 34>("Q8_0"),  kind<Q2_K, 84>("Q2_K"),  kind<Q3_K, 110>("Q3_K"), kind<Q4_K, 144>("Q4_K"),
    kind<Q5_K, 176>("Q5_K"), kind<Q6_K, 210>("Q6_K"),
    kind<IQ4_NL, 18>("IQ4_NL"), kind<IQ4_XS, 136>("IQ4_XS"), kind<MXFP4, 17>("MXFP4"), kind<NVFP4, 36>("NVFP4"),
    kind<IQ3_XXS, 98>("IQ3_XXS"), kind<IQ3_S, 110>("IQ3_S"), kind<IQ2_XXS, 66>("IQ2_XXS"), kind<IQ2_XS, 74>("IQ2_XS"),
    kind<IQ2_S, 82>("IQ2_S"), kind<IQ1_S, 50>("IQ1_S"), kind<IQ1_M, 56>("IQ1_M"), kind<TQ1_0, 54>("TQ1_0"),
    kind<TQ2_0, 66>("TQ2_0"), kind<Q1_0, 18>("Q1_0"), kind<Q2_0, 18>("Q2_0"),
    kind<INT4_G32, 21>("INT4_G32"), kind<INT4_G64, 37>("INT4_G64"), kind<INT4_G128, 69>("INT4_G128"),
    kind<INT8_G32, 37>("INT8_G32"), kind<INT8_G64, 69>("INT8_G64"), kind<INT8_G128, 133>("INT8_G128"),
    kind<F16, 2>("F16"),     kind<BF16, 2>("BF16"),  kind<F32, 4>("F32"),
    kind<FP8_G32, 36>("FP8_G32"), kind<FP8_G64, 68>("FP8_G64"), kind<FP8_G128, 132>("FP8_G128"), kind<NF4, 36>("NF4"),
};
static_assert(std::size(kKinds) == kFormats);

}  // namespace

Format format_of(const std::string& name) {
  for (int f = 0; f < kFormats; f++)
    if (name == kKinds[f].name) return (Format)f;
  throw std::invalid_argument("no kernels for the format " + name);
}

size_t source_bytes(Format f, int rows, int cols) {
  const Kind& k = kKinds[f];
  if (rows <= 0 || cols <= 0 || cols % k.elements)
    throw std::invalid_argument("a matrix of " + std::to_string(rows) + " x " + std::to_string(cols) +
                                " cannot be in this format");
  return (size_t)rows * (cols / k.elements) * k.bytes;
}

size_t packed_bytes(Format f, int rows, int cols) {
  source_bytes(f, rows, cols);
  return panel_bytes(f, cols) * ((rows + kLanes - 1) / kLanes);
}

std::vector<uint16_t> patterns(const std::string& name) {
  const auto all = [](const auto& grid) { return std::vector<uint16_t>(std::begin(grid), std::end(grid)); };
  if (name == "IQ1") return all(kGridIQ1);
  if (name == "IQ2_XXS") return all(kGridIQ2_XXS);
  if (name == "IQ2_XS") return all(kGridIQ2_XS);
  if (name == "IQ2_S") return all(kGridIQ2_S);
  if (name == "IQ3_XXS") return all(kGridIQ3_XXS);
  if (name == "IQ3_S") return all(kGridIQ3_S);
  throw std::invalid_argument("no patterns of codes for " + name);
}

void pack_rows(Pool& pool, const Packed& packed, const uint8_t* source, int first, int rows, uint8_t* out) {
  const Format f = packed.format;
  const size_t row_bytes = source_bytes(f, 1, packed.cols);
  const int panels = (rows + kLanes - 1) / kLanes;
  out += first / kLanes * packed.panel;
  std::atomic<int> next{0};
  pool.run([&](int) {
    for (int p; (p = next.fetch_add(1, std::memory_order_relaxed)) < panels;) {
      const int lanes = rows - p * kLanes < kLanes ? rows - p * kLanes : kLanes;
      kKinds[f].pack_panel(source + (size_t)p * kLanes * row_bytes, lanes, packed.cols, out + p * packed.panel);
    }
  });
}

void decode_stored_row(Format f, const uint8_t* row, int cols, float* out) {
  static thread_local std::vector<uint8_t> panel;
  panel.resize(panel_bytes(f, cols));
  kKinds[f].pack_panel(row, 1, cols, panel.data());
  kKinds[f].decode_lane(panel.data(), 0, cols, out);
}

void Packed::decode_row(int row, float* out) const {
  kKinds[format].decode_lane(data + (row / kLanes) * panel, row % kLanes, cols, out);
  if (factor != 1)
    for (int k = 0; k < cols; k++) out[k] *= factor;
}

}  // namespace cutaway
