// Which tier to run: the best this machine has, or the one that was asked for.
#include <string.h>

#include <stdexcept>
#include <string>

#include "kernels.h"
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
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
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
#if defined(CUTAWAY_EVEX)  // see simd/avx2.h
bool has_avxvnni() {
  return has_avx2() && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
#else
bool has_avxvnni() {  // compilers have no name of one spelling for it
  unsigned most, a, b, c, d;
  return has_avx2() && __get_cpuid_count(7, 0, &most, &b, &c, &d) && most >= 1 &&
         __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1 << 4);
}
#endif
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
#elif defined(__aarch64__)
bool has_dot() { return (getauxval(AT_HWCAP) & (1 << 20)) != 0; }  // HWCAP_ASIMDDP
#endif

const Tier* tiers(int* count) {
  static const Tier all[] = {
#if defined(__x86_64__)
      {"avx512", kernels_avx512, has_avx512()},
      {"avxvnni", kernels_avxvnni, has_avxvnni()},
      {"avx2", kernels_avx2, has_avx2()},
#elif defined(__aarch64__)
      {"i8mm", kernels_i8mm, has_dot() && (getauxval(AT_HWCAP2) & (1 << 13)) != 0},  // HWCAP2_I8MM
      {"neon", kernels_neon, has_dot()},
#endif
      {"generic", kernels_generic, true},
  };
  *count = sizeof all / sizeof *all;
  return all;
}

}  // namespace

const char* available_kernels() {
  static const std::string names = [] {
    std::string joined;
    int count;
    const Tier* all = tiers(&count);
    for (int i = 0; i < count; i++)
      if (all[i].available) joined += (joined.empty() ? "" : ",") + std::string(all[i].name);
    return joined;
  }();
  return names.c_str();
}

const Kernels* choose_kernels(const char* name) {
  int count;
  const Tier* all = tiers(&count);
  for (int i = 0; i < count; i++)
    if (all[i].available && (!*name || !strcmp(name, all[i].name))) return all[i].kernels();
  throw std::invalid_argument("instruction set '" + std::string(name) +
                              "' is not one of this machine's: " + available_kernels());
}

}  // namespace cutaway
