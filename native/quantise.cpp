#include "quantise.h"

#include <string.h>

#include <algorithm>
#include <atomic>
#include <bit>

#include "plain_arithmetic.h"

namespace cutaway {
namespace {

constexpr int kGroups = 16, kGroup = 16;  // a quant block of Q6_K: groups, and weights in each
constexpr int kWide = kGroups * kGroup;
constexpr int kChunk = 16 * kWide;  // numbers that a thread takes at once: they stay in its cache
constexpr float kNothing = 1e-15f;  // a group whose largest number is smaller is a group of zeros

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }
bool is_finite(float x) { return (bits_of(x) & 0x7F800000) != 0x7F800000; }
// Without branches, so that loops over it become vectors. Exact, subnormals included.
float from_half(uint16_t h) {
  const float scaled = float_of((uint32_t)(h & 0x7FFF) << 13) * 0x1p112f;
  const uint32_t special = scaled >= 65536.0f ? 0x7F800000 : 0;
  return float_of(bits_of(scaled) | special | (uint32_t)(h & 0x8000) << 16);
}

// To nearest, ties to even: the addition rounds at the last bit of the half.
uint16_t to_half(float x) {
  const uint32_t twice = bits_of(x) << 1, sign = bits_of(x) >> 16 & 0x8000;
  const float magnitude = float_of(bits_of(x) & 0x7FFFFFFF) * 0x1p112f * 0x1p-110f;
  const uint32_t bias = std::max(twice & 0xFF000000, 0x71000000u);
  const uint32_t rounded = bits_of(float_of((bias >> 1) + 0x07800000) + magnitude);
  return (uint16_t)(sign | ((rounded >> 13 & 0x7C00) + (rounded & 0x0FFF)));
}

uint16_t to_bf16(float x) { return (uint16_t)((bits_of(x) + 0x7FFF + (bits_of(x) >> 16 & 1)) >> 16); }

// Ties to even, for |x| up to 2^22.
float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }
// Ties away from zero, as roundf; for |x| below 2^22.
int rounded(float x) {
  const float magnitude = float_of(bits_of(x) & 0x7FFFFFFF);
  const int whole = (int)magnitude;
  const int up = whole + (magnitude - (float)whole >= 0.5f);
  return x < 0 ? -up : up;
}

// 1 / d; 0 where that is too large, and then a half holds no such d either.
float inverse(float d) {
  const float inverse = 1.0f / d;
  return is_finite(inverse) ? inverse : 0.0f;
}

// Whether the half is finite: scales are.
bool put_half(uint8_t* out, uint16_t half) { return memcpy(out, &half, 2), (half & 0x7C00) != 0x7C00; }

// The largest magnitude. As integers the bits of magnitudes are in their order.
float largest(const float* x, int count) {
  int most = 0;
  for (int i = 0; i < count; i++) most = std::max(most, (int)(bits_of(x[i]) & 0x7FFFFFFF));
  return float_of((uint32_t)most);
}

void pack_nibbles(const uint8_t* codes, uint8_t* out) {
  for (int i = 0; i < kQuant / 2; i++) out[i] = codes[i] | codes[i + kQuant / 2] << 4;
}

// Each of the following writes one quant block, and returns whether it could.

bool q8_0(const float* x, uint8_t* out) {
  const float d = largest(x, kQuant) / 127.0f, id = inverse(d);
  for (int i = 0; i < kQuant; i++) out[2 + i] = (uint8_t)rounded(x[i] * id);
  return put_half(out, to_half(d));
}

bool q4_0(const float* x, uint8_t* out) {
  const float most = largest(x, kQuant);
  float extreme = 0.0f;  // the first of the largest magnitude, with its sign
  for (int i = 0; most > 0 && extreme == 0; i++)
    if (float_of(bits_of(x[i]) & 0x7FFFFFFF) == most) extreme = x[i];
  const float d = extreme / -8.0f, id = inverse(d);
  uint8_t codes[kQuant];
  for (int i = 0; i < kQuant; i++) codes[i] = (uint8_t)std::min(15, (int)(x[i] * id + 8.5f));
  pack_nibbles(codes, out + 2);
  return put_half(out, to_half(d));
}

// The bits of a float as an integer that grows with it; its own inverse.
int ordered(int bits) { return bits ^ (bits >> 31 & 0x7FFFFFFF); }

bool q4_1(const float* x, uint8_t* out) {
  int low = 0x7FFFFFFF, high = -0x7FFFFFFF - 1;
  for (int i = 0; i < kQuant; i++) {
    const int key = ordered((int)bits_of(x[i]));
    low = std::min(low, key), high = std::max(high, key);
  }
  float min = float_of((uint32_t)ordered(low)), max = float_of((uint32_t)ordered(high));
  if (min == 0) min = *std::find(x, x + kQuant, 0.0f);  // the first of zeros of either sign
  if (max == 0) max = 0.0f;
  const float d = (max - min) / 15.0f, id = inverse(d);
  if (!put_half(out, to_half(d)) || !put_half(out + 2, to_half(min))) return false;
  uint8_t codes[kQuant];
  for (int i = 0; i < kQuant; i++) codes[i] = (uint8_t)std::min(15, (int)((x[i] - min) * id + 0.5f));
  pack_nibbles(codes, out + 4);
  return true;
}

// Q6_K: the scale of each group of 16 weights is the best of nineteen. A lane is a group, so that
// sixteen searches go side by side, each summing in the order of its own weights.
using Lanes = float[kGroups];

float six_bits(float x) {
  const float code = nearest(x);
  return code < -32.0f ? -32.0f : code > 31.0f ? 31.0f : code;
}

struct Sums {
  Lanes lx, l2;  // of weight · code and of code², both times weight²
  Sums(const Lanes* x, const Lanes& inverse) : lx{}, l2{} {
    for (int i = 0; i < kGroup; i++)
      for (int g = 0; g < kGroups; g++) {
        const float code = six_bits(inverse[g] * x[i][g]), w = x[i][g] * x[i][g];
        lx[g] += w * x[i][g] * code, l2[g] += w * code * code;
      }
  }
};

// The best scale of each group, and the factor whose codes gave it; 0 for both where all is nothing.
void search(const float* weights, Lanes& scale, Lanes& factor) {
  Lanes x[kGroup], best, extreme;
  for (int g = 0; g < kGroups; g++) {
    const float *group = weights + g * kGroup, most = largest(group, kGroup);
    extreme[g] = 0.0f;
    for (int i = kGroup - 1; i >= 0; i--) {
      x[i][g] = group[i];
      if (most >= kNothing && float_of(bits_of(group[i]) & 0x7FFFFFFF) == most) extreme[g] = group[i];
    }
  }
  const auto factors = [&](float top, Lanes& to) {
    for (int g = 0; g < kGroups; g++) to[g] = extreme[g] == 0 ? 0.0f : top / extreme[g];
  };
  factors(-32.0f, factor);
  const Sums first(x, factor);
  for (int g = 0; g < kGroups; g++) {
    scale[g] = first.l2[g] == 0 ? 0.0f : first.lx[g] / first.l2[g];
    best[g] = scale[g] * first.lx[g];
  }
  for (int step = -9; step <= 9; step++) {
    if (step == 0) continue;
    Lanes tried;
    factors(-(32.0f + 0.1f * (float)step), tried);
    const Sums sums(x, tried);
    for (int g = 0; g < kGroups; g++) {
      if (!(sums.l2[g] > 0 && sums.lx[g] * sums.lx[g] > best[g] * sums.l2[g])) continue;
      factor[g] = tried[g], scale[g] = sums.lx[g] / sums.l2[g], best[g] = scale[g] * sums.lx[g];
    }
  }
}

// Weight 128h + 32q + i: its low bits in byte 64h + i (or + 32 where q is odd), upper half where q > 1.
void pack_sixes(const uint8_t* codes, uint8_t* low, uint8_t* high) {
  for (int h = 0; h < 2; h++, codes += 128, low += 64, high += 32)
    for (int i = 0; i < 32; i++) {
      const uint8_t a = codes[i], b = codes[i + 32], c = codes[i + 64], d = codes[i + 96];
      low[i] = (a & 15) | (c & 15) << 4, low[i + 32] = (b & 15) | (d & 15) << 4;
      high[i] = a >> 4 | b >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6;
    }
}

bool q6_k(const float* x, uint8_t* out) {
  Lanes scale, factor;
  search(x, scale, factor);
  float most = 0.0f, extreme = 0.0f;
  for (float s : scale) {
    if (!is_finite(s)) return false;
    if (const float magnitude = s < 0 ? -s : s; magnitude > most) most = magnitude, extreme = s;
  }
  memset(out, 0, 210);
  if (most < kNothing) return true;
  const float inverse = -128.0f / extreme;
  const uint16_t half = to_half(1.0f / inverse);
  if (!put_half(out + 208, half)) return false;
  uint8_t codes[kWide];
  for (int g = 0; g < kGroups; g++) {
    const float small = std::min(127.0f, nearest(inverse * scale[g])), d = from_half(half) * small;
    out[192 + g] = (uint8_t)(int)small;
    for (int i = g * kGroup; i < (g + 1) * kGroup; i++)
      codes[i] = (uint8_t)(32 + (int)six_bits(d == 0 ? factor[g] * x[i] : x[i] / d));
    if (factor[g] == 0) memset(codes + g * kGroup, 0, kGroup);
  }
  pack_sixes(codes, out, out + 128);
  return true;
}

bool f16(const float* x, uint8_t* out) { return put_half(out, to_half(*x)); }
bool bf16(const float* x, uint8_t* out) { return put_half(out, to_bf16(*x)), (to_bf16(*x) & 0x7F80) != 0x7F80; }
bool f32(const float* x, uint8_t* out) { return memcpy(out, x, 4), true; }

void widen(Format from, const uint8_t* source, int count, float* out) {
  uint16_t halves[kChunk];
  if (from == F32) memcpy(out, source, 4 * (size_t)count);
  else memcpy(halves, source, 2 * (size_t)count);
  if (from == F16)
    for (int i = 0; i < count; i++) out[i] = from_half(halves[i]);
  if (from == BF16)
    for (int i = 0; i < count; i++) out[i] = float_of((uint32_t)halves[i] << 16);
}

// Writes quant blocks of one format; the number before the first that could not be written, or count.
template <int kNumbers, int kBytes, bool (*write)(const float*, uint8_t*)>
int blocks(const float* x, int count, uint8_t* out) {
  for (int i = 0; i < count; i += kNumbers, out += kBytes)
    if (!is_finite(largest(x + i, kNumbers)) || !write(x + i, out)) return i;
  return count;
}

struct Writer {
  int numbers, bytes;  // of a quant block
  int (*write)(const float*, int, uint8_t*);
};

Writer writer_of(Format to) {
  switch (to) {
    case Q8_0: return {32, 34, blocks<32, 34, q8_0>};
    case Q4_0: return {32, 18, blocks<32, 18, q4_0>};
    case Q4_1: return {32, 20, blocks<32, 20, q4_1>};
    case Q6_K: return {256, 210, blocks<256, 210, q6_k>};
    case F16: return {1, 2, blocks<1, 2, f16>};
    case BF16: return {1, 2, blocks<1, 2, bf16>};
    case F32: return {1, 4, blocks<1, 4, f32>};
    default: return {0, 0, nullptr};
  }
}

}  // namespace

bool can_quantise_to(Format to) { return writer_of(to).write != nullptr; }

int64_t quantise(Pool& pool, Format from, const uint8_t* source, int64_t count, Format to, uint8_t* out) {
  const Writer writer = writer_of(to);
  const int width = from == F32 ? 4 : 2;
  std::atomic<int64_t> next{0}, bad{count};
  pool.run([&](int) {
    const PlainArithmetic plain;
    float x[kChunk];
    for (int64_t start; (start = next.fetch_add(kChunk)) < count;) {
      const int numbers = (int)std::min<int64_t>(kChunk, count - start);
      widen(from, source + start * width, numbers, x);
      const int done = writer.write(x, numbers, out + start / writer.numbers * writer.bytes);
      int64_t first = bad.load();
      while (done < numbers && start + done < first && !bad.compare_exchange_weak(first, start + done)) {}
    }
  }, Pool::Work::kUneven);
  return bad.load() < count ? bad.load() : -1;
}

}  // namespace cutaway
