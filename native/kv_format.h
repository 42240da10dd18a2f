// The formats of keys and values, and where a head's numbers lie in its part of a KV block.
//
// In all but f16 each 32 numbers of a token's head share a half, their scale (the last may be fewer):
//   f16   a half
//   q8_0  code · scale              -127 … 127
//   q5_1  code · scale + minimum       0 … 31    a second half for each 32; one rounding, in an fma
//   q4_0  (code - 8) · scale           0 … 15
// code · scale is exact in a float, so that the formats differ in what is stored and in nothing else.
//
// A head's part has all codes, the fifth bits, the scales and the minima, one after the other. Of keys a dimension's
// 32 tokens are neighbours, of values a token's dimensions; scales and minima lie likewise, by 32 dimensions. Two
// codes of 4 bits in one byte are of one token, since threads store tokens side by side. Of every 16 dimensions,
//   keys    byte (2q + r, token) has dimension 4q + r (low) and 4q + r + 2 (high), whose fifth bits are
//           bits 2q and 2q + 1 of byte (r, token);
//   values  byte i of a token has dimension i (low) and i + 8 (high); bit i of two bytes is dimension i's fifth.
#pragma once
#include "formats.h"

namespace cutaway {

enum class KvFormat { f16, q8_0, q5_1, q4_0 };
struct KvFormats { KvFormat keys, values; };

constexpr bool is_packed(KvFormat f) { return f >= KvFormat::q5_1; }
constexpr bool has_minimum(KvFormat f) { return f == KvFormat::q5_1; }

constexpr int kMostHeadDim = 1024;
constexpr int padded_dim(int head_dim) { return (head_dim + 15) / 16 * 16; }
constexpr int scales_of(int dims) { return (dims + kQuant - 1) / kQuant; }

// Where the parts after the codes begin, in bytes.
struct KvHead { int fifth, scales, minima, end; };

constexpr KvHead kv_head(KvFormat f, int dims) {
  const int numbers = dims * kKvBlock, halves = scales_of(dims) * kKvBlock * 2;
  if (f == KvFormat::f16) return {numbers * 2, numbers * 2, numbers * 2, numbers * 2};
  const int codes = is_packed(f) ? numbers / 2 : numbers, scales = codes + (f == KvFormat::q5_1 ? numbers / 8 : 0);
  return {codes, scales, scales + halves, scales + halves * (has_minimum(f) ? 2 : 1)};
}
constexpr KvHead key_head(KvFormat f, int head_dim) { return kv_head(f, is_packed(f) ? padded_dim(head_dim) : head_dim); }
constexpr KvHead value_head(KvFormat f, int head_dim) { return kv_head(f, padded_dim(head_dim)); }

// Bytes of a KV block's tokens for each dimension.
constexpr int dim_bytes(KvFormat f) { return kv_head(f, kQuant).end / kQuant; }

struct Kernels;

// One token of a head into the head's part of a KV block; numbers: padded_dim(head_dim) of them.
void store_key(const Kernels& k, KvFormat f, const float* numbers, int head_dim, uint8_t* head, int token);
void store_value(const Kernels& k, KvFormat f, const float* numbers, int head_dim, uint8_t* head, int token);

}  // namespace cutaway
