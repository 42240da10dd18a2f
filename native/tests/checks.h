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

int check_sampler();  // sampler.cpp; how many checks failed

}  // namespace cutaway
