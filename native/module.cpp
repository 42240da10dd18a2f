// The Python face of the kernels: numbers and arrays in, arrays out, the GIL released while it works. Here packed weights; the rest
// is in *_module.cpp.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <errno.h>

#include <atomic>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "arena.h"
#include "arrays.h"
#include "file_bytes.h"
#include "kernels.h"
#include "plain_arithmetic.h"

using namespace nanobind::literals;
using namespace cutaway;

void bind_plan(nb::module_& m);  // plan_module.cpp
void bind_device(nb::module_& m);  // device_module.cpp
void bind_sampler(nb::module_& m);  // sampler_module.cpp
void bind_measure(nb::module_& m);  // measure_module.cpp
void bind_quantise(nb::module_& m);  // quantise_module.cpp
void bind_files(nb::module_& m);  // files_module.cpp

namespace {

void check_written(int error) {
  if (!error) return;
  errno = error;
  PyErr_SetFromErrno(PyExc_OSError);
  throw nb::python_error();
}

void fill(Arena& arena, Pool& pool, const Packed& packed, Bytes source, int first) {
  const int rows = arena.rows_of(packed, source.size(), first);
  const auto bytes = [&](size_t at, size_t, auto&) { return source.data() + at; };
  check_written(without_gil([&] { return arena.fill(pool, packed, {bytes}, first, rows); }));
}

// What each thread reads it packs while it is in the processor's cache.
void fill_from_file(Arena& arena, Pool& pool, const Packed& packed, const FileBytes& source, int first) {
  constexpr size_t kAtOnce = 64 << 10;
  const int rows = arena.rows_of(packed, source.size(), first);
  std::atomic<int> failed{0};  // no thread may throw; what it packs then is never used
  const auto bytes = [&](size_t at, size_t count, std::vector<uint8_t>& buffer) {
    if (buffer.size() < count) buffer.resize(count);
    if (const int error = source.try_read(at, buffer.data(), count)) failed = error;
    return buffer.data();
  };
  const int error = without_gil([&] { return arena.fill(pool, packed, {bytes, kAtOnce}, first, rows); });
  source.check(failed);
  check_written(error);
}

Packed pack_into(Arena& arena, Pool& pool, const std::string& format, Bytes source, int rows, int cols) {
  if (source.size() != source_bytes(format_of(format), rows, cols))
    throw std::invalid_argument("a " + format + " matrix has the wrong number of bytes");
  Packed packed = arena.reserve(format, rows, cols);
  fill(arena, pool, packed, source, 0);
  return packed;
}

Numbers decode(const Packed& packed, int first, int last) {
  if (first < 0 || first > last || last > packed.rows) throw std::out_of_range("rows");
  return new_array(last - first, packed.cols, [&](float* out) {
    for (int row = first; row < last; row++, out += packed.cols) packed.decode_row(row, out);
  });
}

// What the system refuses, in a sentence that names the settings; see cutaway.errors.
void explain(const std::exception_ptr& thrown, void*) {
  const auto raise = [](const char* kind, const char* sentence) {
    PyErr_SetString(nb::module_::import_("cutaway.errors").attr(kind).ptr(), sentence);
  };
  try {
    std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    raise("OutOfMemoryError", "there is not enough memory to compute this: lower kv_tokens or context, or free some");
  } catch (const std::system_error&) {  // of std::thread alone
    raise("CutawayError", "the system has no more threads: lower threads (--threads), or raise its limit (ulimit -u, pids.max)");
  }
}

}  // namespace

NB_MODULE(_native, m) {
  // Arrays ask for the GIL of the main interpreter, and would wait for it for ever.
  if (PyInterpreterState_Get() != PyInterpreterState_Main())
    throw std::runtime_error("cutaway computes in Python's main interpreter alone, and this is a subinterpreter: under mod_wsgi write "
                             "WSGIApplicationGroup %{GLOBAL}, under uWSGI single-interpreter = true");
  nb::register_exception_translator(explain);
  m.doc() = "Kernels, packed weights and the plan executor. Not for direct use: see cutaway.compute.backends.cpu.";
  nb::set_leak_warnings(false);  // a daemon thread at work while Python ends keeps what it uses
  m.def("tiers", &available_kernels, "Instruction-set tiers of this machine, best first, comma-separated.");
  m.def("amx_refusal", &amx_refusal, "Why matrix units that this processor has are not used; empty where they are.");

  nb::class_<PlainBlock>(m, "PlainArithmetic", "In its block numbers are rounded as usual, whatever the thread's own rounding is.")
      .def(nb::init<>())
      .def("__enter__", &PlainBlock::enter)
      .def("__exit__", [](const PlainBlock& b, nb::handle, nb::handle, nb::handle) { b.exit(); },
           "kind"_a.none(), "error"_a.none(), "traceback"_a.none());

  nb::class_<Pool>(m, "Pool").def(nb::init<int>(), "threads"_a).def_prop_ro("threads", &Pool::max_threads);

  nb::class_<Packed>(m, "Packed")
      .def_ro("rows", &Packed::rows)
      .def_ro("cols", &Packed::cols)
      .def_ro("factor", &Packed::factor)
      .def_prop_ro("is_float", [](const Packed& p) { return is_float(p.format); })
      .def("decode", &decode, "first"_a, "last"_a, "These rows as floats, exactly: (last - first, cols).");

  nb::class_<Arena>(m, "Arena")
      .def(nb::init<size_t, std::optional<int>>(), "bytes"_a, "file"_a = nb::none(),
           "file: the descriptor of a file of this size; the arena has one of its own.")
      .def("pack", &pack_into, "pool"_a, "format"_a, "source"_a, "rows"_a, "cols"_a)
      .def("reserve", &Arena::reserve, "format"_a, "rows"_a, "cols"_a, "factor"_a = 1.0f,
           "factor: what products with the matrix are multiplied by, and its decoded rows.")
      .def("fill", &fill_from_file, "pool"_a, "packed"_a, "source"_a, "first"_a)
      .def("fill", &fill, "pool"_a, "packed"_a, "source"_a, "first"_a);
  m.def("packed_bytes", [](const std::string& format, int rows, int cols) {
    return Arena::bytes_of(format_of(format), rows, cols);
  }, "format"_a, "rows"_a, "cols"_a);
  m.def("patterns", &patterns, "name"_a, "What IQ1, IQ2_XXS … IQ3_S name by a number: digits of 2 or 3 bits.");

  bind_files(m);
  bind_plan(m);
  bind_device(m);
  bind_sampler(m);
  bind_measure(m);
  bind_quantise(m);
}
