// The calls that make a plan, as Python recorded them (backends/cpu/recorded.py).
#pragma once
#include <vector>

#include "../ops.h"
#include "numbers.h"

namespace cutaway {

// A list of calls, whose matrices are named by their numbers.
struct Calls : Reader {
  Calls(Reader at, const std::vector<Packed>& matrices) : Reader(at), matrices(matrices) {}
  // Makes the next call: its name, then the arguments that its op reads.
  void call(Plan& plan);

  const std::vector<Packed>& matrices;
};

}  // namespace cutaway
