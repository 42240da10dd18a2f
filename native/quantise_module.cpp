// The Python face of quantise.h: bytes in, bytes out, without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <climits>
#include <stdexcept>

#include "gil.h"
#include "pack.h"
#include "quantise.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace cutaway;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

int64_t quantise_into(Pool& pool, const std::string& from, Bytes source, const std::string& to, Out out) {
  const Format have = format_of(from), want = format_of(to);
  if (!is_float(have)) throw std::invalid_argument("only F16, BF16 and F32 are quantised, not " + from);
  if (!can_quantise_to(want)) throw std::invalid_argument("no quantiser for the format " + to);
  const size_t width = have == F32 ? 4 : 2, count = source.size() / width;
  if (count == 0) return -1;
  if (count > INT_MAX || source.size() % width || out.size() != source_bytes(want, 1, (int)count))
    throw std::invalid_argument("source and out differ in how many numbers they hold");
  WithoutGil release;
  return quantise(pool, have, source.data(), (int64_t)count, want, out.data());
}

}  // namespace

void bind_quantise(nb::module_& m) {
  m.def("quantise", &quantise_into, "pool"_a, "source_format"_a, "source"_a, "format"_a, "out"_a,
        "-1, or the first number of the first quant block that cannot be written.");
}
