// The packed layout of a weight matrix, shared by the packer and the kernels.
//
// Rows are output features. A panel is 16 rows, so that each SIMD lane owns one; a panel runs along
// k in quant blocks of 32. A quant block of a panel holds, one after the other,
//   codes   in planes of 8, 4, 2 or 1 bits a code, 64 bytes for each bit; byte 4·row + j is of a k = 4g + j:
//           8 bits: load g has k-group g, plus 128
//           4 bits: load i has groups i (low) and 4 + i (high)
//           2 bits: load i has groups 4i … 4i + 3, from the lowest bits on
//           1 bit:  bit g is of group g
//           Codes of 3, 5 and 6 bits are their lowest 2 or 4 bits, and then a plane of what is left.
//   scales  16 halves (and 16 halves of minima), or 16 bytes for each sub-block (and 16 bytes of minima), or none.
// Where a format has a half for several quant blocks, 16 of them precede these (and 16 more, negated, for the
// minima).
// Everything is the file's own numbers in another order: nothing is rounded. Formats that name one of a few
// patterns of codes are laid out as the codes.
// Where it is a float (the formats of quantised folders), 16 of them and 16 bytes, the codes that stand for 0, do, or
// 16 floats and 16 more, the minima.
// F16, BF16 and F32 panels are k after k, 16 values each. FP8 panels too, of bytes, with 16 floats, the scales, before
// every 32, 64 or 128 k; and NF4 panels, with 16 floats before every 64 k, and bytes of k (low) and k + 1 (high).
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace cutaway {

constexpr int kLanes = 16;     // rows of a panel
constexpr int kQuant = 32;     // k of a quant block
constexpr int kSuper = 8;      // quant blocks of a K format that share their halves; unpacked at once
constexpr int kKvBlock = 32;   // tokens of a KV block
constexpr int kKvChunk = 256;  // tokens whose softmax is taken at once, in prefill as in decode

enum Format {
  Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4, IQ3_XXS, IQ3_S,
  IQ2_XXS, IQ2_XS, IQ2_S, IQ1_S, IQ1_M, TQ1_0, TQ2_0, Q1_0, Q2_0, INT4_G32, INT4_G64, INT4_G128, INT8_G32, INT8_G64,
  INT8_G128, AFFINE4_G32, AFFINE4_G64, AFFINE4_G128, AFFINE8_G32, AFFINE8_G64, AFFINE8_G128,
  F16, BF16, F32, FP8_G32, FP8_G64, FP8_G128, NF4,  // these read activations as floats
  kFormats
};

// What a code of a sub-block is multiplied by.
enum class Scale {
  kHalf,    // a half of its own
  kShared,  // the half of several quant blocks
  kByte,    // a byte times that half; it is signed where there are no minima
  kE8M0,    // half of a power of two, of which a byte is the exponent (load_e8m0)
  kE4M3,    // half of a float of 7 bits (load_e4m3)
  kGroup,   // the float of several quant blocks, which have a code that stands for 0 in common, too
  kAffine,  // the float of several quant blocks, which have a minimum in common, too, a float
};

struct Layout {
  int bits;     // of a code, as packed
  int sub;      // k that share a scale: 32 or 16
  int offset;   // a code stands for code - 2^offset; -1: for itself
  Scale scale;
  bool minima;  // a minimum is added; of groups, a code that stands for 0 is subtracted from codes
  int blocks;   // quant blocks of one block of the file
  const int8_t* values = nullptr;  // a code is an index of these, which are multiplied as value + 2^offset
  float unit = 1;                  // a power of two, times which a shared half is taken

  bool operator==(const Layout&) const = default;
};

constexpr int8_t kIQ4[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kE2M1[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // doubled
// Where a pattern of magnitudes is named, the highest bit of a code is the sign.
constexpr int8_t kIQ3XXS[] = {2, 6, 10, 14, 18, 22, 26, 31, -2, -6, -10, -14, -18, -22, -26, -31};  // halved
constexpr int8_t kIQ3S[] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
constexpr int8_t kIQ2[] = {8, 25, 43, 0, -8, -25, -43, 0};
constexpr int8_t kIQ1[] = {-7, 1, 9, 0, -9, -1, 7, 0};  // -1, 0 and 1, to which 1/8 is added or from which it is taken, times 8
constexpr int8_t kSign[] = {-1, 1};

constexpr Layout kLayouts[] = {
    {4, 32, 3, Scale::kHalf, false, 1},         // Q4_0
    {4, 32, -1, Scale::kHalf, true, 1},         // Q4_1
    {5, 32, 4, Scale::kHalf, false, 1},         // Q5_0
    {5, 32, -1, Scale::kHalf, true, 1},         // Q5_1
    {8, 32, 7, Scale::kHalf, false, 1},         // Q8_0
    {2, 16, -1, Scale::kByte, true, 8},         // Q2_K
    {3, 16, 2, Scale::kByte, false, 8},         // Q3_K
    {4, 32, -1, Scale::kByte, true, 8},         // Q4_K
    {5, 32, -1, Scale::kByte, true, 8},         // Q5_K
    {6, 16, 5, Scale::kByte, false, 8},         // Q6_K
    {4, 32, 7, Scale::kHalf, false, 1, kIQ4},   // IQ4_NL
    {4, 32, 7, Scale::kByte, false, 8, kIQ4},   // IQ4_XS
    {4, 32, 4, Scale::kE8M0, false, 1, kE2M1},  // MXFP4
    {4, 16, 4, Scale::kE4M3, false, 2, kE2M1},  // NVFP4
    {4, 32, 5, Scale::kByte, false, 8, kIQ3XXS, 1 / 2.0f},  // IQ3_XXS
    {4, 32, 4, Scale::kByte, false, 8, kIQ3S},              // IQ3_S
    {3, 32, 6, Scale::kByte, false, 8, kIQ2, 1 / 8.0f},     // IQ2_XXS
    {3, 16, 6, Scale::kByte, false, 8, kIQ2, 1 / 8.0f},     // IQ2_XS
    {3, 16, 6, Scale::kByte, false, 8, kIQ2, 1 / 8.0f},     // IQ2_S
    {3, 32, 4, Scale::kByte, false, 8, kIQ1, 1 / 8.0f},     // IQ1_S
    {3, 16, 4, Scale::kByte, false, 8, kIQ1, 1 / 8.0f},     // IQ1_M
    {2, 32, 0, Scale::kShared, false, 8},                   // TQ1_0
    {2, 32, 0, Scale::kShared, false, 8},                   // TQ2_0
    {1, 32, 1, Scale::kShared, false, 4, kSign},            // Q1_0
    {2, 32, 0, Scale::kShared, false, 2},                   // Q2_0
    {4, 32, -1, Scale::kGroup, true, 1},  // INT4_G32
    {4, 32, -1, Scale::kGroup, true, 2},  // INT4_G64
    {4, 32, -1, Scale::kGroup, true, 4},  // INT4_G128
    {8, 32, 7, Scale::kGroup, true, 1},   // INT8_G32
    {8, 32, 7, Scale::kGroup, true, 2},   // INT8_G64
    {8, 32, 7, Scale::kGroup, true, 4},   // INT8_G128
    {4, 32, 3, Scale::kAffine, true, 1},  // AFFINE4_G32
    {4, 32, 3, Scale::kAffine, true, 2},  // AFFINE4_G64
    {4, 32, 3, Scale::kAffine, true, 4},  // AFFINE4_G128
    {8, 32, 7, Scale::kAffine, true, 1},  // AFFINE8_G32, whose codes stand for themselves: see lift
    {8, 32, 7, Scale::kAffine, true, 2},  // AFFINE8_G64
    {8, 32, 7, Scale::kAffine, true, 4},  // AFFINE8_G128
};

constexpr int kFloatGroups[] = {32, 64, 128, 64};  // k that share a scale, from FP8_G32 on

// What the codes of NF4 stand for.
constexpr float kNF4[] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,
    -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f,
    0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f,
};

// The first format that is laid out alike: kernels read panels, whatever file they come from.
constexpr Format kernel_of(Format f) {
  if (f >= F16) return f;
  int first = 0;
  while (kLayouts[first] != kLayouts[f]) first++;
  return (Format)first;
}

constexpr bool is_float(Format f) { return f >= F16; }
constexpr bool is_grouped_float(Format f) { return f >= FP8_G32; }
constexpr bool has_float(Layout l) { return l.scale == Scale::kGroup || l.scale == Scale::kAffine; }
constexpr bool has_header(Layout l) { return l.scale == Scale::kByte || l.scale == Scale::kShared || has_float(l); }
// What is added to a code less 128: codes of 8 bits are multiplied as signed bytes, and those of AFFINE8 are 0 to 255.
constexpr int lift(Layout l) { return l.scale == Scale::kAffine && l.bits == 8 ? 128 : 0; }
constexpr int code_bytes(Layout l) { return 64 * l.bits; }
constexpr int scale_bytes(Layout l) {
  if (has_float(l)) return 0;
  const int bytes = l.scale == Scale::kShared ? 0 : l.scale == Scale::kHalf ? 32 : 16 * (32 / l.sub);
  return l.minima ? 2 * bytes : bytes;
}
constexpr int block_bytes(Layout l) { return code_bytes(l) + scale_bytes(l); }
constexpr int header_bytes(Layout l) {
  return !has_header(l) ? 0 : l.scale == Scale::kAffine ? 128 : l.scale == Scale::kGroup ? 80 : l.minima ? 64 : 32;
}

// The bits of what is multiplied: of a code, or of value + 2^offset.
constexpr int wide_bits(Layout l) { return l.values ? l.offset + 1 : l.bits; }

// The planes of a code's lower and upper bits; 0: there is none.
constexpr int lower_bits(int bits) { return bits >= 8 ? 8 : bits >= 4 ? 4 : bits >= 2 ? 2 : 1; }
constexpr int upper_bits(int bits) { return bits - lower_bits(bits); }

// Where k-group g lies in a plane of so many bits a code: the byte of its load, and its lowest bit there.
struct Place { int load, bit; };
constexpr Place place(int bits, int g) {
  if (bits == 8) return {64 * g, 0};
  if (bits == 4) return {64 * (g % 4), g < 4 ? 0 : 4};
  return {64 * (g * bits / 8), g * bits % 8};
}

constexpr size_t panel_bytes(Format f, int cols) {
  if (is_grouped_float(f)) {
    const int group = kFloatGroups[f - FP8_G32];
    return (size_t)cols / group * (64 + kLanes * group / (f == NF4 ? 2 : 1));
  }
  if (is_float(f)) return (size_t)cols * kLanes * (f == F32 ? 4 : 2);
  const Layout l = kLayouts[f];
  const size_t blocks = cols / kQuant;
  return blocks * block_bytes(l) + blocks / l.blocks * header_bytes(l);
}

// One activation row's quant block: what every matmul reads, in one cache line.
struct alignas(64) ActBlock {
  int8_t q[kQuant];
  float d;            // x = d · q
  float d_sum[3];     // d · Σq over the whole, the first and the second half
  int32_t minus_sum;  // -Σq over the whole
  union {             // a tier's kernels read what its `quantise` wrote
    int32_t minus_half[2];   // -Σq over the first and the second half
    int32_t minus_pairs[3];  // AVX2: over the whole and those, of k 0 and 1 of every four, and, 16 bits higher, of k 2 and 3
  };
};
static_assert(sizeof(ActBlock) == 64);

}  // namespace cutaway
