#include "pack.h"

#include <string.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <stdexcept>
#include <string>

#include "pack_blocks.h"

namespace cutaway {

namespace {

void put_half(uint8_t* p, int row, uint16_t half) { memcpy(p + 2 * row, &half, 2); }
void put_word(uint8_t* p, int row, uint32_t word) { memcpy(p + 4 * row, &word, 4); }

// The plane that has the bits from `from` on of one row's codes.
template <int bits>
void write_plane(const RowBlock& r, int from, int lane, uint8_t* p) {
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
void write_lane(const RowBlock& r, int lane, uint8_t* p) {
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
        RowBlock row{};
        read_row<f>(p, b, row);
        if (l.scale == Scale::kGroup && b == 0) {
          memcpy(out + 4 * lane, p, 4), out[64 + lane] = p[4];
        } else if (l.scale == Scale::kAffine && b == 0) {
          memcpy(out + 4 * lane, p, 4), memcpy(out + 64 + 4 * lane, p + 4, 4);
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

// A format as GGUF has it, or as folders get it, and how it gets into panels.
struct Kind {
  const char* name;
  int elements, bytes;  // of a quant block or super-block
  void (*pack_panel)(const uint8_t* source, int lanes, int cols, uint8_t* out);
};

template <Format f, int kBytes> constexpr Kind kind(const char* name) {
  if constexpr (is_grouped_float(f)) {
    constexpr int group = kFloatGroups[f - FP8_G32];
    return {name, group, kBytes, pack_float_group_panel<group, kBytes>};
  } else if constexpr (is_float(f)) return {name, 1, kBytes, pack_float_panel<kBytes>};
  else return {name, kQuant * kLayouts[f].blocks, kBytes, pack_panel<f, kBytes>};
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
    kind<AFFINE4_G32, 24>("AFFINE4_G32"), kind<AFFINE4_G64, 40>("AFFINE4_G64"), kind<AFFINE4_G128, 72>("AFFINE4_G128"),
    kind<AFFINE8_G32, 40>("AFFINE8_G32"), kind<AFFINE8_G64, 72>("AFFINE8_G64"), kind<AFFINE8_G128, 136>("AFFINE8_G128"),
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

const char* format_name(Format format) { return kKinds[format].name; }

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

void pack_rows(Pool& pool, const Packed& packed, const RowBytes& source, int first, int rows, uint8_t* out) {
  const Format f = packed.format;
  const size_t row_bytes = source_bytes(f, 1, packed.cols), panel_rows = kLanes * row_bytes;
  const int chunk = kLanes * (int)std::max<size_t>(source.at_once / panel_rows, 1);
  out += first / kLanes * packed.panel;
  std::atomic<int> next{0};
  pool.run([&](int) {
    static thread_local std::vector<uint8_t> buffer;
    for (int row; (row = next.fetch_add(chunk, std::memory_order_relaxed)) < rows;) {
      const int end = std::min(row + chunk, rows);
      const uint8_t* from = source.find(row * row_bytes, (end - row) * row_bytes, buffer);
      for (; row < end; row += kLanes, from += panel_rows)
        kKinds[f].pack_panel(from, std::min(end - row, kLanes), packed.cols, out + row / kLanes * packed.panel);
    }
  });
}

void decode_stored_row(Format f, const uint8_t* row, int cols, float* out) {
  static thread_local std::vector<uint8_t> panel;
  panel.resize(panel_bytes(f, cols));
  kKinds[f].pack_panel(row, 1, cols, panel.data());
  unpack_row(f, panel.data(), 0, cols, out);
}

}  // namespace cutaway
