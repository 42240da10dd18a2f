// The fused multiply-add of a tier against one of whole numbers: numbers of every kind, those above all that a sum in
// doubles, rounded twice, gets wrong. (C libraries have such mistakes: musl's fmaf, below the normal numbers.) Prints a
// hash, the same on every machine.
//
// Usage: fma [millions]. Exit code 1 where one result differs.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../formats.h"
#include "../simd/simd.h"

using namespace cutaway;
using namespace cutaway::CUTAWAY_TIER;

namespace {

struct Noise {
  uint64_t state;
  uint32_t next() { return (uint32_t)((state = state * 6364136223846793005u + 1442695040888963407u) >> 32); }
  uint32_t draw_below(uint32_t n) { return (uint32_t)((uint64_t)next() * n >> 32); }
};

float float_of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

// The definition: x · y + z as one whole number times a power of two, and that rounded once.
struct Exact { __int128 whole; int power; };

Exact exact(float x) {
  const uint32_t bits = bits_of(x), exponent = bits >> 23 & 255, fraction = bits & 0x7fffff;
  const int64_t whole = exponent ? fraction | 0x800000 : fraction;
  return {bits >> 31 ? -whole : whole, (int)(exponent ? exponent : 1) - 150};
}

int length(__int128 x) {
  int bits = 0;
  for (unsigned __int128 rest = x < 0 ? -x : x; rest; rest >>= 1) bits++;
  return bits;
}

float round_exact(Exact e) {
  const bool is_negative = e.whole < 0;
  unsigned __int128 whole = is_negative ? -e.whole : e.whole;
  int drop = length(e.whole) - 24;
  if (drop + e.power < -149) drop = -149 - e.power;
  if (drop > 0) {
    const unsigned __int128 unit = 1, half = drop < 127 ? unit << (drop - 1) : 0, rest = drop < 127 ? whole & ((unit << drop) - 1) : 0;
    whole = drop < 127 ? whole >> drop : 0, e.power += drop;
    whole += rest > half || (rest == half && half && (whole & 1));
  } else {
    const int raise = e.power + 149 < -drop ? e.power + 149 : -drop;  // as far as the exponent goes
    whole <<= raise, e.power -= raise;
  }
  if (whole >> 24) whole >>= 1, e.power++;
  const uint32_t sign = is_negative ? 0x80000000 : 0;
  if (!(whole >> 23)) return float_of_bits(sign | (uint32_t)whole);  // e.power is -149
  if (e.power > 104) return float_of_bits(sign | 0x7f800000);
  return float_of_bits(sign | (uint32_t)(e.power + 150) << 23 | ((uint32_t)whole & 0x7fffff));
}

float exact_fma(float x, float y, float z) {
  if (!isfinite(x) || !isfinite(y) || !isfinite(z)) return isfinite(x) && isfinite(y) ? z : x * y + z;
  Exact p = exact(x), c = exact(z);
  const Exact by = exact(y);
  p.whole *= by.whole, p.power += by.power;
  if (!p.whole || !c.whole) return p.whole ? round_exact(p) : x * y + z;  // exact, and the sign of a zero
  Exact &high = p.power > c.power ? p : c, &low = p.power > c.power ? c : p;
  const int room = 126 - length(high.whole), apart = high.power - low.power;
  const int raise = apart < room ? apart : room;
  high.whole <<= raise, high.power -= raise;
  if (high.power > low.power) {  // so far below that only its sign counts
    const __int128 last = low.whole < 0 ? -1 : 1;
    return round_exact({high.whole + last, high.power});
  }
  const __int128 sum = high.whole + low.whole;
  return sum ? round_exact({sum, low.power}) : 0.0f;
}

// 2^exponent times a little more, or less, than 1.
float draw_near_power(Noise& n, int exponent) {
  const uint32_t sign = n.draw_below(2) << 31, power = (uint32_t)(127 + exponent) << 23;
  return float_of_bits((sign | power) + n.draw_below(9) - 4);
}

struct Three { float a, b, c; };

constexpr uint32_t kSpecial[] = {0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff,
                                 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x3f800000, 0xbf800000, 0x34000000};

Three three_of(Noise& n) {
  const auto any = [&] { return float_of_bits(n.next()); };
  const auto special = [&] { return float_of_bits(kSpecial[n.draw_below(sizeof kSpecial / 4)]); };
  switch (n.draw_below(8)) {
    case 0: return {any(), any(), any()};
    case 1: {  // the product and the sum nearly cancel
      const float a = any(), b = float_of_bits((n.next() & 0x807fffff) | (100 + n.draw_below(54)) << 23);
      const float product = -a * b;
      return {a, b, float_of_bits(bits_of(product) + n.draw_below(5) - 2)};
    }
    case 2: {  // half a last place, more or less
      const int i = (int)n.draw_below(60) - 30, j = (int)n.draw_below(60) - 30, k = i + j + 22 + (int)n.draw_below(5);
      const float c = float_of_bits((n.next() & 0x807fffff) | (uint32_t)(127 + k) << 23);
      return {draw_near_power(n, i), draw_near_power(n, j), c};
    }
    case 3: {  // results below the normal numbers, between two of them
      const int i = -(int)n.draw_below(90) - 30, j = -150 - i + (int)n.draw_below(28);
      const uint32_t sign = n.next() & 0x80000000, fraction = n.next();
      return {draw_near_power(n, i), draw_near_power(n, j), float_of_bits(sign | fraction >> (9 + n.draw_below(23)))};
    }
    case 6: {  // half a last place, less a little, on top of what is just below the smallest normal number
      const int i = -(int)n.draw_below(60) - 40, j = -150 - i;
      const uint32_t off = 1u << n.draw_below(8), sign = n.draw_below(2) << 31;
      const uint32_t a = (uint32_t)(127 + i) << 23 | off, b = sign | (((uint32_t)(127 + j) << 23) - 2 * off);
      return {float_of_bits(a), float_of_bits(b), float_of_bits(sign | (0x00800000 - n.draw_below(3)))};
    }
    case 4: return {special(), special(), special()};
    case 5: return {special(), any(), n.draw_below(2) ? special() : any()};
    default: {  // few bits each: sums that are exact, many of them in the middle between two floats
      const auto few = [&](int bits) { return (float)((int)n.draw_below(4096) - 2048) * (float)(1 << n.draw_below(bits)); };
      return {few(8), few(8), few(30)};
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t count = (argc > 1 ? atoll(argv[1]) : 1) * 1000000;
  Noise noise{2008};
  uint64_t hash = 0xcbf29ce484222325u;
  int64_t wrong = 0;
  for (int64_t done = 0; done < count; done += kLanes) {
    alignas(64) float a[kLanes], b[kLanes], c[kLanes], actual[kLanes];
    for (int i = 0; i < kLanes; i++) {
      const Three t = three_of(noise);
      a[i] = t.a, b[i] = t.b, c[i] = t.c;
    }
    store(actual, fma(load(a), load(b), load(c)));
    for (int i = 0; i < kLanes; i++) {
      const float expected = exact_fma(a[i], b[i], c[i]);
      const bool is_same = isnan(expected) ? isnan(actual[i]) : bits_of(expected) == bits_of(actual[i]);
      if (!is_same && wrong++ < 10) printf("fma(%a, %a, %a) is %a, here %a\n", a[i], b[i], c[i], expected, actual[i]);
      hash = (hash ^ (isnan(actual[i]) ? 0x7fc00000 : bits_of(actual[i]))) * 0x100000001b3u;
    }
  }
  printf("fma of %lld: %lld differ, %016llx\n", (long long)count, (long long)wrong, (unsigned long long)hash);
  return wrong != 0;
}
