// Which tier to run: the best of this machine, or the one that is named.
#include <string.h>

#include <span>
#include <stdexcept>
#include <string>

#include "kernels.h"
#include "platform.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace cutaway {
namespace {

struct Tier {
  const char* name;
  const Kernels* kernels;  // null: not on this machine
};

#if defined(__x86_64__)

// What the processor has and the system saves where it switches threads. (__builtin_cpu_supports knows
// other names with each compiler.)
struct Features {
  bool avx2 = false, avxvnni = false, avx512 = false, amx = false;
  Features() {
    unsigned a, b, c, d, most, a7, b7, c7, d7;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !__get_cpuid_count(7, 0, &most, &b7, &c7, &d7)) return;
    constexpr unsigned fma = 1 << 12, saves = 1 << 27, avx = 1 << 28, f16c = 1 << 29;
    constexpr unsigned all = fma | saves | avx | f16c;
    if ((c & all) != all) return;
    unsigned saved, high;
    asm("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    avx2 = (saved & 0x06) == 0x06 && (b7 & 1 << 5);
#if defined(__APPLE__)  // saves it from a thread's first such instruction on, and says so only then
    saved |= 0xe0;
#endif
    constexpr unsigned f = 1 << 16, dq = 1 << 17, bw = 1 << 30, vl = 1u << 31, vnni = 1 << 11;
    avx512 = avx2 && (saved & 0xe0) == 0xe0 && (b7 & (f | dq | bw | vl)) == (f | dq | bw | vl) && (c7 & vnni);
    constexpr unsigned tile = 1 << 24, int8 = 1 << 25, tiles = 0x60000;
    amx = avx512 && (d7 & (tile | int8)) == (tile | int8) && (saved & tiles) == tiles && has_tiles();
#if defined(CUTAWAY_EVEX)  // see simd/avx2.h
    (void)a7, avxvnni = avx512;
#else
    avxvnni = avx2 && most >= 1 && __get_cpuid_count(7, 1, &a7, &b, &c, &d) && (a7 & 1 << 4);
#endif
  }

 private:
  // Eight of them, of 16 rows of 64 bytes.
  static bool has_tiles() {
    unsigned a, b, c, d;
    return __get_cpuid_count(0x1d, 1, &a, &b, &c, &d) && b >> 16 >= 8 && (b & 0xffff) == 64 && (c & 0xffff) >= 16;
  }
};

#endif

std::span<const Tier> tiers() {
#if defined(__x86_64__)
  static const Features has;
#endif
  static const Tier all[] = {
#if defined(__x86_64__)
      {"amx", has.amx ? kernels_amx() : nullptr},
      {"avx512", has.avx512 ? kernels_avx512() : nullptr},
      {"avxvnni", has.avxvnni ? kernels_avxvnni() : nullptr},
      {"avx2", has.avx2 ? kernels_avx2() : nullptr},
#elif defined(__aarch64__)
      {"i8mm", platform::has_dot() && platform::has_i8mm() ? kernels_i8mm() : nullptr},
      {"neon", platform::has_dot() ? kernels_neon() : nullptr},
#endif
#if defined(__wasm__)  // a download: nothing in it that is not used
      {"wasm", kernels_wasm()},
#else
      {"generic", kernels_generic()},
      {"amx-plain", kernels_amx_plain()},
#endif
  };
  return all;
}

}  // namespace

const char* available_kernels() {
  static const std::string names = [] {
    std::string text;
    for (const Tier& tier : tiers())
      if (tier.kernels) text += (text.empty() ? "" : ",") + std::string(tier.name);
    return text;
  }();
  return names.c_str();
}

const Kernels* choose_kernels(const char* name) {
  for (const Tier& tier : tiers())
    if (tier.kernels && (!*name || !strcmp(name, tier.name))) return tier.kernels;
  throw std::invalid_argument("instruction set '" + std::string(name) +
                              "' is not one of this machine's: " + available_kernels());
}

}  // namespace cutaway
