// The formats that can be written: how each lays out its quant blocks.
#pragma once
#include <string_view>

#include "quantise_numbers.h"

namespace cutaway {

// How much each number of a quant block matters: an importance matrix's numbers of the same columns, and
// the mean square of the whole row, which only formats of 32 ask for. of is null where there is no matrix.
struct Importance {
  const float* of;
  float row_mean_square;

  Importance at_column(int column) const { return {of ? of + column : nullptr, row_mean_square}; }
};

// Writes whole quant blocks. Returns the first number of the first that holds one that is not finite or
// that the format cannot hold; count where there is none.
using Write = int (*)(const float* x, Importance importance, int count, uint8_t* out);

struct QuantFormat {
  std::string_view name;  // as GGUF says it: "Q4_K"
  int numbers, bytes;     // of a quant block
  Write write;
};

extern const QuantFormat kSmallFormats[8], kWideFormats[5], kTableFormats[3];

// Writes quant blocks one by one, where each depends on its own numbers alone.
template <int numbers, int bytes, bool (*write)(const float*, Importance, uint8_t*)>
int one_by_one(const float* x, Importance importance, int count, uint8_t* out) {
  for (int i = 0; i < count; i += numbers, out += bytes)
    if (!is_finite(largest(x + i, numbers)) || !write(x + i, importance.at_column(i), out)) return i;
  return count;
}

}  // namespace cutaway
