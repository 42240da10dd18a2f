#include "kv_format.h"

#include <string.h>

#include "kernels.h"
#include "ops.h"

namespace cutaway {
namespace {

// A token's numbers as codes of a byte each, and the halves that go with every 32.
struct Coded {
  uint8_t code[kMostHeadDim];
  uint16_t scale[kMostHeadDim / kQuant], minimum[kMostHeadDim / kQuant];
  Coded(const Kernels& k, KvFormat f, const float* numbers, int n) { k.to_codes(f, numbers, n, code, scale, minimum); }
};

// Halves to every `apart`-th place.
void spread(const uint16_t* from, int n, int apart, uint8_t* to) {
  for (int i = 0; i < n; i++) ((uint16_t*)to)[i * apart] = from[i];
}

uint8_t nibbles(uint8_t low, uint8_t high) { return (uint8_t)((low & 15) | high << 4); }

// Where a number of a head lies: a code of its own, or half a byte; its fifth bit; its scale.
struct Place { int code, byte, fifth, scale; bool high; int bit; };

Place key_place(int d, int token) {
  const auto at = [&](int line) { return line * kKvBlock + token; };
  return {at(d), at(d / 4 * 2 + d % 2), at(d / 16 * 2 + d % 2), at(d / kQuant), d % 4 / 2 == 1, d % 16 / 2};
}

Place value_place(int d, int token, int n) {
  return {token * n + d, token * (n / 2) + d / 16 * 8 + d % 8, token * (n / 8) + d / 8, token * scales_of(n) + d / kQuant,
          d % 16 / 8 == 1, d % 8};
}

float read_number(KvFormat f, const KvHead& at, const uint8_t* head, const Place& p) {
  const auto half = [&](int first, int i) { return half_to_float(((const uint16_t*)(head + first))[i]); };
  if (f == KvFormat::f16) return half(0, p.code);
  const float scale = half(at.scales, p.scale);
  if (f == KvFormat::q8_0) return (int8_t)head[p.code] * scale;
  int code = p.high ? head[p.byte] >> 4 : head[p.byte] & 15;
  if (f == KvFormat::q5_1) code |= (head[at.fifth + p.fifth] >> p.bit & 1) << 4;
  const double minimum = has_minimum(f) ? half(at.minima, p.scale) : -8 * scale;
  return (float)(code * (double)scale + minimum);  // exact in doubles
}

}  // namespace

void store_key(const Kernels& k, KvFormat f, const float* numbers, int head_dim, uint8_t* head, int token) {
  const int n = padded_dim(head_dim);
  if (f == KvFormat::f16) {
    uint16_t half[kMostHeadDim];
    k.to_half(numbers, n, half);
    return spread(half, head_dim, kKvBlock, head + token * 2);
  }
  const Coded x(k, f, numbers, n);
  const KvHead at = key_head(f, head_dim);
  const int scales = scales_of(head_dim);
  spread(x.scale, scales, kKvBlock, head + at.scales + token * 2);
  if (has_minimum(f)) spread(x.minimum, scales, kKvBlock, head + at.minima + token * 2);
  if (!is_packed(f)) {
    for (int d = 0; d < head_dim; d++) head[d * kKvBlock + token] = x.code[d];
    return;
  }
  for (int i = 0; i < n / 2; i++) {
    const uint8_t* code = x.code + i / 2 * 4 + i % 2;
    head[i * kKvBlock + token] = nibbles(code[0], code[2]);
  }
  for (int i = 0; f == KvFormat::q5_1 && i < n / 8; i++) {
    const uint8_t* code = x.code + i / 2 * 16 + i % 2;
    uint8_t bits = 0;
    for (int j = 0; j < 8; j++) bits |= (uint8_t)(code[2 * j] >> 4 << j);
    head[at.fifth + i * kKvBlock + token] = bits;
  }
}

void store_value(const Kernels& k, KvFormat f, const float* numbers, int head_dim, uint8_t* head, int token) {
  const int n = padded_dim(head_dim), scales = scales_of(n);
  if (f == KvFormat::f16) return k.to_half(numbers, n, (uint16_t*)head + token * n);
  const Coded x(k, f, numbers, n);
  const KvHead at = value_head(f, head_dim);
  spread(x.scale, scales, 1, head + at.scales + token * scales * 2);
  if (has_minimum(f)) spread(x.minimum, scales, 1, head + at.minima + token * scales * 2);
  if (!is_packed(f)) return (void)memcpy(head + token * n, x.code, n);
  for (int i = 0; i < n / 2; i++) {
    const uint8_t* code = x.code + i / 8 * 16 + i % 8;
    head[token * (n / 2) + i] = nibbles(code[0], code[8]);
  }
  for (int i = 0; f == KvFormat::q5_1 && i < n / 8; i++) {
    uint8_t bits = 0;
    for (int j = 0; j < 8; j++) bits |= (uint8_t)(x.code[8 * i + j] >> 4 << j);
    head[at.fifth + token * (n / 8) + i] = bits;
  }
}

void read_kv(KvFormat f, bool values, const uint8_t* heads, int kv_heads, int head_dim, float* out) {
  const KvHead at = values ? value_head(f, head_dim) : key_head(f, head_dim);
  for (const uint8_t* head = heads; head < heads + (size_t)at.end * kv_heads; head += at.end)
    for (int token = 0; token < kKvBlock; token++)
      for (int d = 0; d < head_dim; d++)
        *out++ = read_number(f, at, head, values ? value_place(d, token, padded_dim(head_dim)) : key_place(d, token));
}

}  // namespace cutaway
