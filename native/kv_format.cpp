#include "kv_format.h"

#include <string.h>

#include "kernels.h"

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

}  // namespace

void store_key(const Kernels& k, KvFormat f, const float* numbers, int head_dim, uint8_t* head, int token) {
  const int n = padded(head_dim);
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
  const int n = padded(head_dim), scales = scales_of(n);
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

}  // namespace cutaway
