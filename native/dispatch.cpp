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
  const Kernels* (*kernels)();
  bool available;
};

#if defined(__x86_64__)

// What the processor has and the system saves where it switches threads. (__builtin_cpu_supports knows
// other names with each compiler.)
struct Features {
  bool avx2 = false, avxvnni = false, avx512 = false;
  Features() {
    unsigned a, b, c, d, most, a7, b7, c7;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !__get_cpuid_count(7, 0, &most, &b7, &c7, &d)) return;
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
#if defined(CUTAWAY_EVEX)  // see simd/avx2.h
    (void)a7, avxvnni = avx512;
#else
    avxvnni = avx2 && most >= 1 && __get_cpuid_count(7, 1, &a7, &b, &c, &d) && (a7 & 1 << 4);
#endif
  }
};

#endif

std::span<const Tier> tiers() {
#if defined(__x86_64__)
  static const Features has;
#endif
  static const Tier all[] = {
#if defined(__x86_64__)
      {"avx512", kernels_avx512, has.avx512},
      {"avxvnni", kernels_avxvnni, has.avxvnni},
      {"avx2", kernels_avx2, has.avx2},
#elif defined(__aarch64__)
      {"i8mm", kernels_i8mm, platform::has_dot() && platform::has_i8mm()},
      {"neon", kernels_neon, platform::has_dot()},
#endif
      {"generic", kernels_generic, true},
  };
  return all;
}

}  // namespace

const char* available_kernels() {
  static const std::string names = [] {
    std::string joined;
    for (const Tier& tier : tiers())
      if (tier.available) joined += (joined.empty() ? "" : ",") + std::string(tier.name);
    return joined;
  }();
  return names.c_str();
}

const Kernels* choose_kernels(const char* name) {
  for (const Tier& tier : tiers())
    if (tier.available && (!*name || !strcmp(name, tier.name))) return tier.kernels();
  throw std::invalid_argument("instruction set '" + std::string(name) +
                              "' is not one of this machine's: " + available_kernels());
}

}  // namespace cutaway
