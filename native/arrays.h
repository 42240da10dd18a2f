// NumPy arrays that the Python face takes and gives.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <vector>

#include "gil.h"

namespace cutaway {

namespace nb = nanobind;

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

// A new array of rows times cols, once `write` has filled it without the GIL.
template <class Write> Numbers new_array(int rows, int cols, Write write) {
  const size_t n = std::max(rows, 0), width = std::max(cols, 0);
  auto* numbers = new std::vector<float>(n * width);
  nb::capsule owner(numbers, [](void* p) noexcept { delete (std::vector<float>*)p; });
  without_gil([&] { write(numbers->data()); });
  return {numbers->data(), {n, width}, owner};
}

}  // namespace cutaway
