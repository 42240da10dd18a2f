#include "pack.h"

#include <string.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <string>
#include <utility>

namespace cutaway {

namespace {

// How a GGUF quant block (or super-block) is laid out: bytes, and where its parts begin.
struct Source {
  int elements, bytes;
};
constexpr Source kSources[] = {{32, 18},   {32, 20},   {32, 22},   {32, 24},  {32, 34},
                               {256, 84},  {256, 110}, {256, 144}, {256, 176}, {256, 210}};

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

// One panel: all lanes of a (super-)block before the next, so that each cache line is filled at once.
template <Format f>
void pack_panel(const uint8_t* source, int lanes, int cols, uint8_t* out) {
  constexpr Layout l = kLayouts[f];
  constexpr Source from = kSources[f];
  constexpr int per = from.elements / kQuant;
  const size_t row_bytes = (size_t)(cols / from.elements) * from.bytes;
  for (int s = 0; s < cols / from.elements; s++, source += from.bytes) {
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

using PackPanel = void (*)(const uint8_t* source, int lanes, int cols, uint8_t* out);
constexpr PackPanel kPackPanel[] = {
    pack_panel<Q4_0>, pack_panel<Q4_1>, pack_panel<Q5_0>, pack_panel<Q5_1>, pack_panel<Q8_0>,
    pack_panel<Q2_K>, pack_panel<Q3_K>, pack_panel<Q4_K>, pack_panel<Q5_K>, pack_panel<Q6_K>};

void pack_float_lane(Format f, const uint8_t* source, int cols, int lane, uint8_t* out) {
  const int size = f == F32 ? 4 : 2;
  for (int k = 0; k < cols; k++)
    memcpy(out + ((size_t)k * kLanes + lane) * size, source + (size_t)k * size, size);
}

float half_to_float(uint16_t h) {
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  float value = exponent ? __builtin_ldexpf((float)(1024 + fraction), exponent - 25)
                         : __builtin_ldexpf((float)fraction, -24);
  if (exponent == 31) value = fraction ? __builtin_nanf("") : __builtin_inff();
  return h & 0x8000 ? -value : value;
}

}  // namespace

Format format_of(const std::string& name) {
  constexpr const char* names[] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K",
                                   "Q4_K", "Q5_K", "Q6_K", "F16",  "BF16", "F32"};
  for (int f = 0; f < kFormats; f++)
    if (name == names[f]) return (Format)f;
  throw std::invalid_argument("no kernels for the format " + name);
}

size_t source_bytes(Format f, int rows, int cols) {
  const Source s = is_float(f) ? Source{1, f == F32 ? 4 : 2} : kSources[f];
  if (rows <= 0 || cols <= 0 || cols % s.elements)
    throw std::invalid_argument("a matrix of " + std::to_string(rows) + " x " + std::to_string(cols) +
                                " cannot be in this format");
  return (size_t)rows * (cols / s.elements) * s.bytes;
}

size_t packed_bytes(Format f, int rows, int cols) {
  source_bytes(f, rows, cols);
  return panel_bytes(f, cols) * ((rows + kLanes - 1) / kLanes);
}

Packed pack(Pool& pool, Format f, const uint8_t* source, int rows, int cols,
            std::shared_ptr<Memory> owner, uint8_t* out) {
  Packed packed{f, rows, cols, panel_bytes(f, cols), out, std::move(owner)};
  pack_rows(pool, packed, source, 0, rows, out);
  return packed;
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
      const uint8_t* from = source + (size_t)p * kLanes * row_bytes;
      uint8_t* to = out + p * packed.panel;
      if (!is_float(f)) kPackPanel[f](from, lanes, packed.cols, to);
      else
        for (int lane = 0; lane < lanes; lane++)
          pack_float_lane(f, from + lane * row_bytes, packed.cols, lane, to);
    }
  });
}

namespace {

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

using Decode = void (*)(const uint8_t* panel, int lane, int cols, float* out);

template <int... F>
constexpr std::array<Decode, sizeof...(F)> decoders(std::integer_sequence<int, F...>) {
  return {[] {
    if constexpr (is_float((Format)F)) return &decode_float_lane<(Format)F>;
    else return &decode_lane<(Format)F>;
  }()...};
}

constexpr auto kDecoders = decoders(std::make_integer_sequence<int, kFormats>());

}  // namespace

void Packed::decode_row(int row, float* out) const {
  kDecoders[format](data + (row / kLanes) * panel, row % kLanes, cols, out);
}

}  // namespace cutaway
