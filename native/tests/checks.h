// What bits.cpp runs beside its own checks.
#pragma once
#include <string>
#include <vector>

#include "../kernels.h"

namespace cutaway {

// The tiers that this machine can run, best first.
inline std::vector<std::string> tier_names() {
  std::vector<std::string> names;
  const std::string all = available_kernels();
  for (size_t at = 0, comma; at < all.size(); at = comma + 1) {
    comma = all.find(',', at) == std::string::npos ? all.size() : all.find(',', at);
    names.push_back(all.substr(at, comma - at));
  }
  return names;
}

#if defined(__wasm__)
constexpr int kTestThreads = 1;
#else
constexpr int kTestThreads = 3;
#endif

// Each returns how many checks failed.
int check_sampler();           // sampler.cpp
int check_pool(int threads);   // pool.cpp
int check_failed_jobs(int threads);
int check_refusals();          // plan.cpp
int check_prefetch();

}  // namespace cutaway
