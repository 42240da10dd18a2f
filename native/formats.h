// The packed layout of a weight matrix, shared by the packer and the kernels.
//
// Rows are output features. A panel is 16 rows, so that each SIMD lane owns one; a panel runs along
// k in quant blocks of 32. A quant block of a panel holds, one after the other,
//   codes   4 bits: 4 x 64 bytes; byte 4·row + j of load i is k = 4i + j (low) and 16 + 4i + j (high)
//           5 bits: the same and 64 bytes; bit g of byte 4·row + j is the fifth bit of k = 4g + j
//           6 bits: the same and 2 x 64 bytes; bits 2g, 2g+1 of byte 4·row + j of plane p are the
//                   upper bits of k = 16p + 4g + j
//           8 bits: 8 x 64 bytes; byte 4·row + j of load g is k = 4g + j, plus 128
//   scales  16 halves (and 16 halves of minima), or, in the K formats, 16 bytes for each sub-block
//           (and 16 bytes of minima), which multiply a half per row that precedes every 8 quant
//           blocks (and a second half, negated, for the minima).
// Everything is the file's own numbers in another order: nothing is rounded.
// F16, BF16 and F32 panels are k after k, 16 values each.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace cutaway {

constexpr int kLanes = 16;     // rows of a panel
constexpr int kQuant = 32;     // k of a quant block
constexpr int kSuper = 8;      // quant blocks of a K format that share their halves
constexpr int kKvBlock = 32;   // tokens of a KV block
constexpr int kKvChunk = 256;  // tokens whose softmax is taken at once, in prefill as in decode

enum Format { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, F16, BF16, F32, kFormats };

struct Layout {
  int bits;     // of a code, as packed
  int sub;      // k that share a scale: 32 or 16
  int offset;   // a code stands for code - 2^offset; -1: for itself
  bool super;   // K format: byte scales times a half per 8 quant blocks
  bool minima;  // a minimum is added
};

constexpr Layout kLayouts[] = {
    {4, 32, 3, false, false},  {4, 32, -1, false, true}, {5, 32, 4, false, false},
    {5, 32, -1, false, true},  {8, 32, 7, false, false}, {4, 16, -1, true, true},
    {4, 16, 2, true, false},   {4, 32, -1, true, true},  {5, 32, -1, true, true},
    {6, 16, 5, true, false},
};

constexpr bool is_float(Format f) { return f >= F16; }
constexpr int code_bytes(Layout l) {
  return l.bits == 8 ? 512 : 256 + (l.bits == 5 ? 64 : l.bits == 6 ? 128 : 0);
}
constexpr int scale_bytes(Layout l) {
  return (l.super ? 16 * (32 / l.sub) : 32) * (l.minima ? 2 : 1);
}
constexpr int block_bytes(Layout l) { return code_bytes(l) + scale_bytes(l); }
constexpr int header_bytes(Layout l) { return l.super ? (l.minima ? 64 : 32) : 0; }

constexpr size_t panel_bytes(Format f, int cols) {
  if (is_float(f)) return (size_t)cols * kLanes * (f == F32 ? 4 : 2);
  const Layout l = kLayouts[f];
  const size_t blocks = cols / kQuant;
  return blocks * block_bytes(l) + (l.super ? blocks / kSuper * header_bytes(l) : 0);
}

// One activation row's quant block: what every matmul reads, in one cache line.
struct alignas(64) ActBlock {
  int8_t q[kQuant];
  float d;               // x = d · q
  float d_sum[3];        // d · Σq over the whole, the first and the second half
  int32_t minus_sum[3];  // -Σq over the same
  int32_t unused;
};
static_assert(sizeof(ActBlock) == 64);

}  // namespace cutaway
