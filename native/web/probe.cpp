// Whether the relaxed instructions of this browser, on this processor, are the exact ones: tried on numbers of every kind,
// beside what the core does without them.
#include "../formats.h"
#include "../simd/simd.h"

namespace cutaway::CUTAWAY_TIER {
namespace {

struct Noise {
  uint64_t state;
  uint32_t next() { return (uint32_t)((state = state * 6364136223846793005u + 1442695040888963407u) >> 32); }
};

enum Kind { kAnyBits, kNearOne, kWhatIsLost, kKinds };

F numbers(Noise& noise, bool is_any) {
  uint32_t bits[16];
  for (uint32_t& word : bits) word = is_any ? noise.next() : 0x3f800000 | (noise.next() & 0x80000fff);
  F x;
  memcpy(&x, bits, sizeof x);
  return x;
}

bool is_same(F a, F b) {  // a NaN is a NaN
  v128_t same = wasm_i32x4_splat(-1);
  for (int i = 0; i < 4; i++) {
    const v128_t neither = wasm_v128_and(wasm_f32x4_ne(a.v[i], a.v[i]), wasm_f32x4_ne(b.v[i], b.v[i]));
    same = wasm_v128_and(same, wasm_v128_or(wasm_i32x4_eq(a.v[i], b.v[i]), neither));
  }
  return wasm_i32x4_all_true(same);
}

bool is_fused(Noise& noise, Kind kind) {
  const F a = numbers(noise, kind == kAnyBits), b = numbers(noise, kind == kAnyBits);
  const F c = kind == kWhatIsLost ? sub(set1(0), mul(a, b)) : numbers(noise, kind == kAnyBits);
  return is_same(fma(a, b, c), fma_of_doubles(a, b, c));
}

bool is_dot_exact(Noise& noise, uint8_t largest) {
  W w[4];
  int8_t x[16];
  uint8_t codes[sizeof w];
  for (uint8_t& code : codes) code = largest == 127 ? noise.next() & 127 : largest;
  for (int8_t& number : x) number = largest == 127 ? (int8_t)noise.next() : -128;
  memcpy(w, codes, sizeof w);
  const I zero = splat_i(0), fast = dot16<7>(zero, w, x), slow = dot16_of_pairs(zero, w, x);
  for (int i = 0; i < 4; i++)
    if (!wasm_i32x4_all_true(wasm_i32x4_eq(fast.v[i], slow.v[i]))) return false;
  return true;
}

}  // namespace
}  // namespace cutaway::CUTAWAY_TIER

// Call it at least twice: browsers compile what runs often a second time, in another way.
extern "C" __attribute__((export_name("probe"))) int probe(int times) {
  using namespace cutaway::CUTAWAY_TIER;
  Noise noise{(uint64_t)times};
  for (int i = 0; i < times; i++)
    if (!is_fused(noise, (Kind)(i % kKinds)) || !is_dot_exact(noise, i & 1 ? 127 : 126)) return 0;
  return 1;
}
