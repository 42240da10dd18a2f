// A plan as data: the list of calls that make it (compute/lowering/calls.py), which Python hands over, or a page.
#pragma once
#include <vector>

#include "numbers.h"
#include "ops.h"

namespace cutaway {

// What calls name by its number.
struct Named {
  std::vector<Packed> matrices;
  std::vector<StoredTable> stored;
};

// Adds to a plan what a list of calls says: each is its name, then its arguments. Throws std::invalid_argument where it says
// what cannot be; then the plan is not to be run.
void add_calls(Plan& plan, Reader& list, const Named& tables);

}  // namespace cutaway
