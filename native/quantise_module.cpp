// The Python face of quantise.h: bytes in, bytes out, without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
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
using Numbers = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

int64_t quantise_into(Pool& pool, const std::string& from, Bytes source, const std::string& to, Out out,
                      std::optional<Numbers> importance) {
  const Format have = format_of(from);
  const QuantFormat* want = quant_format(to);
  if (!is_float(have)) throw std::invalid_argument("only F16, BF16 and F32 are quantised, not " + from);
  if (!want) throw std::invalid_argument("no quantiser for the format " + to);
  const size_t width = have == F32 ? 4 : 2, count = source.size() / width;
  if (count == 0) return -1;
  if (source.size() % width || count % want->numbers || out.size() != count / want->numbers * want->bytes)
    throw std::invalid_argument("source and out differ in how many numbers they hold");
  const size_t columns = importance ? importance->size() : count;
  if (columns == 0 || columns % want->numbers || count % columns)
    throw std::invalid_argument("importance needs one number for each column of whole rows");
  WithoutGil release;
  return quantise(pool, have, source.data(), (int64_t)count, *want, importance ? importance->data() : nullptr,
                  (int64_t)columns, out.data());
}

}  // namespace

void bind_quantise(nb::module_& m) {
  m.def("quantise", &quantise_into, "pool"_a, "source_format"_a, "source"_a, "format"_a, "out"_a,
        "importance"_a = nb::none(),
        "-1, or the first number of the first quant block that cannot be written. importance: of each column.");
}
