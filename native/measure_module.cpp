// The Python face of measure.h: numbers in, rates out, without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "measure.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace cutaway;

void bind_measure(nb::module_& m) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<ReadProbe>(m, "ReadProbe")
      .def(nb::init<Pool&, size_t>(), "pool"_a, "bytes"_a, Release())
      .def("run", &ReadProbe::run, "pool"_a, "streams"_a, Release());
  m.def("tile_rate", [](Pool& pool, const std::string& tier, const Packed& weight) {
    return tile_rate(pool, *choose_kernels(tier.c_str()), weight);
  }, "pool"_a, "tier"_a, "weight"_a, Release());
  m.def("instruction_rate", [](Pool& pool, const std::string& tier) {
    return instruction_rate(pool, choose_kernels(tier.c_str())->name);
  }, "pool"_a, "tier"_a, Release());
}
