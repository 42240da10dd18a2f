#include "pack.h"

#include <string.h>

#include <atomic>
#include <iterator>
#include <stdexcept>
#include <string>

namespace cutaway {

namespace {

// The codes of one row's 32 k, four to a word in the order of k, their byte scales and halves.
struct Row {
  uint32_t code[kQuant / 4];
  uint8_t scale[2], minimum[2];  // K formats: per sub-block
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

// Quant block b of the (super-)block at p.
template <Format f>
void read_row(const uint8_t* p, int b, Row& row) {
  if constexpr (f == Q8_0) read_q8(p, row);
  else if constexpr (f == Q2_K || f == Q3_K) read_k2_k3<f>(p, b, row);
  else if constexpr (f == Q4_K || f == Q5_K) read_k4_k5<f>(p, b, row);
  else if constexpr (f == Q6_K) read_k6(p, b, row);
  else read_q4_q5<f>(p, row);
}

void put_half(uint8_t* p, int row, uint16_t half) { memcpy(p + 2 * row, &half, 2); }
void put_word(uint8_t* p, int row, uint32_t word) { memcpy(p + 4 * row, &word, 4); }

// Lay one row's quant block into its lane of a panel's quant block.
template <Format f>
void write_lane(const Row& r, int lane, uint8_t* p) {
  constexpr Layout l = kLayouts[f];
  if constexpr (l.bits == 8) {
    for (int g = 0; g < 8; g++) put_word(p + 64 * g, lane, r.code[g]);
  } else {
    for (int g = 0; g < 4; g++)
      put_word(p + 64 * g, lane, (r.code[g] & kNibbles) | (r.code[g + 4] & kNibbles) << 4);
    constexpr int bits = l.bits - 4, planes = bits == 2 ? 2 : bits, each = 8 / (planes ? planes : 1);
    for (int plane = 0; plane < planes; plane++) {
      uint32_t upper = 0;
      for (int g = 0; g < each; g++) upper |= (r.code[each * plane + g] >> 4 & kPairs) << bits * g;
      put_word(p + 256 + 64 * plane, lane, upper);
    }
  }
  uint8_t* s = p + code_bytes(l);
  if (!l.super) {
    put_half(s, lane, r.d);
    if (l.minima) put_half(s + 32, lane, r.d_min);
    return;
  }
  constexpr int subs = kQuant / l.sub;
  for (int i = 0; i < subs; i++) {
    s[16 * i + lane] = r.scale[i];
    if (l.minima) s[16 * (subs + i) + lane] = r.minimum[i];
  }
}

// One panel, of (super-)blocks of so many bytes: all lanes of one before the next, so that each cache line is filled
// at once.
template <Format f, int kBytes>
void pack_panel(const uint8_t* source, int lanes, int cols, uint8_t* out) {
  constexpr Layout l = kLayouts[f];
  constexpr int per = l.super ? kSuper : 1;
  const int count = cols / (per * kQuant);
  const size_t row_bytes = (size_t)count * kBytes;
  for (int s = 0; s < count; s++, source += kBytes) {
    for (int lane = 0; lane < lanes; lane++) {
      const uint8_t* p = source + lane * row_bytes;
      uint8_t* to = out + header_bytes(l);
      for (int b = 0; b < per; b++, to += block_bytes(l)) {
        Row row{};
        read_row<f>(p, b, row);
        if (l.super && b == 0) {
          put_half(out, lane, row.d);
          if (l.minima) put_half(out + 32, lane, row.d_min);
        }
        write_lane<f>(row, lane, to);
      }
    }
    out += header_bytes(l) + per * block_bytes(l);
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

template <Format F>
float code_value(const uint8_t* block, int lane, int k) {
  constexpr Layout l = kLayouts[F];
  const int g = k / 4, at = 4 * lane + k % 4;
  if constexpr (l.bits == 8) return (float)(block[64 * g + at] - 128);
  int code = block[64 * (g % 4) + at] >> (g < 4 ? 0 : 4) & 15;
  if constexpr (l.bits == 5) code |= (block[256 + at] >> g & 1) << 4;
  if constexpr (l.bits == 6) code |= (block[256 + 64 * (g / 4) + at] >> 2 * (g % 4) & 3) << 4;
  return (float)(l.offset < 0 ? code : code - (1 << l.offset));
}

template <Format F>
void decode_lane(const uint8_t* p, int lane, int cols, float* out) {
  constexpr Layout l = kLayouts[F];
  constexpr int subs = kQuant / l.sub;
  float d = 0, d_min = 0;
  for (int b = 0; b < cols / kQuant; b++, p += block_bytes(l), out += kQuant) {
    if (l.super && b % kSuper == 0) {
      d = half_to_float(half_at(p + 2 * lane));
      if (l.minima) d_min = half_to_float(half_at(p + 32 + 2 * lane));
      p += header_bytes(l);
    }
    const uint8_t* s = p + code_bytes(l);
    for (int sub = 0; sub < subs; sub++) {
      const uint8_t* byte = s + 16 * sub + lane;
      float scale = d, minimum = d_min;
      if constexpr (!l.super) {
        scale = half_to_float(half_at(s + 2 * lane));
        if (l.minima) minimum = half_to_float(half_at(s + 32 + 2 * lane));
      } else {
        scale = d * (l.minima ? (float)*byte : (float)(int8_t)*byte);
        if (l.minima) minimum = d_min * (float)byte[16 * subs];
      }
#pragma GCC unroll 32
      for (int k = 0; k < l.sub; k++) {
        const float value = scale * code_value<F>(p, lane, sub * l.sub + k);
        out[sub * l.sub + k] = l.minima ? value + minimum : value;
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

// A format as GGUF has it, and how it gets into panels and out of them.
struct Kind {
  const char* name;
  int elements, bytes;  // of a quant block or super-block
  void (*pack_panel)(const uint8_t* source, int lanes, int cols, uint8_t* out);
  void (*decode_lane)(const uint8_t* panel, int lane, int cols, float* out);
};

template <Format f, int kBytes> constexpr Kind kind(const char* name) {
  if constexpr (is_float(f)) return {name, 1, kBytes, pack_float_panel<kBytes>, decode_float_lane<f>};
  else return {name, kQuant * (kLayouts[f].super ? kSuper : 1), kBytes, pack_panel<f, kBytes>, decode_lane<f>};
}

constexpr Kind kKinds[] = {
    kind<Q4_0, 18>("Q4_0"),  kind<Q4_1, 20>("Q4_1"),  kind<Q5_0, 22>("Q5_0"),  kind<Q5_1, 24>("Q5_1"),
    kind<Q8_0, 34>("Q8_0"),  kind<Q2_K, 84>("Q2_K"),  kind<Q3_K, 110>("Q3_K"), kind<Q4_K, 144>("Q4_K"),
    kind<Q5_K, 176>("Q5_K"), kind<Q6_K, 210>("Q6_K"), kind<F16, 2>("F16"),     kind<BF16, 2>("BF16"),
    kind<F32, 4>("F32"),
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

void Packed::decode_row(int row, float* out) const {
  kKinds[format].decode_lane(data + (row / kLanes) * panel, row % kLanes, cols, out);
}

}  // namespace cutaway
