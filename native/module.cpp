// The Python face of the kernels: numbers and arrays in, arrays out, the GIL released while it works. Here packed weights; the rest
// is in *_module.cpp.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <errno.h>

#include <atomic>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

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
void bind_merges(nb::module_& m);  // merges_module.cpp

namespace {

void check_written(int error) {
  if (!error) return;
  errno = error;
  PyErr_SetFromErrno(PyExc_OSError);
  throw nb::python_error();
}

// Some rows of a matrix, from a file or from memory.
struct Piece {
  const Packed& packed;
  int first, rows;
  const FileBytes* file;  // null where they are in memory
  const uint8_t* memory;
  int read_error = 0;  // what was wrong with the file, of which no thread may throw: what it packs then is never used
};

Piece piece_of(const Arena& arena, nb::handle item) {
  const auto [packed, source, first] = nb::cast<std::tuple<const Packed*, nb::handle, int>>(item);
  if (nb::isinstance<FileBytes>(source)) {
    const FileBytes& file = nb::cast<const FileBytes&>(source);
    return {*packed, first, arena.rows_of(*packed, file.size(), first), &file, nullptr};
  }
  Bytes bytes;
  if (!nb::try_cast(source, bytes, false))  // a copy made here would be gone before it is read
    throw std::invalid_argument("a piece's source must be FileBytes or a contiguous uint8 array");
  return {*packed, first, arena.rows_of(*packed, bytes.size(), first), nullptr, bytes.data()};
}

// Returns 0, or the errno of a failed write. What each thread reads it packs while it is in the processor's cache.
int fill_piece(Arena& arena, Pool& pool, Piece& piece) {
  constexpr size_t kAtOnce = 64 << 10;
  std::atomic<int> read_error{0};
  const auto in_memory = [&](size_t at, size_t, auto&) { return piece.memory + at; };
  const auto read = [&](size_t at, size_t count, std::vector<uint8_t>& buffer) {
    if (buffer.size() < count) buffer.resize(count);
    if (const int error = piece.file->try_read(at, buffer.data(), count)) read_error = error;
    return buffer.data();
  };
  const RowBytes source = piece.file ? RowBytes{read, kAtOnce} : RowBytes{in_memory};
  const int error = arena.fill(pool, piece.packed, source, piece.first, piece.rows);
  piece.read_error = read_error;
  return error;
}

// Pack all pieces without the GIL: while weights are packed another thread makes the tokenizer, and may keep the GIL for
// milliseconds each time that it is given up.
void fill(Arena& arena, Pool& pool, nb::list items) {
  std::vector<Piece> pieces;
  for (nb::handle item : items) pieces.push_back(piece_of(arena, item));
  int error = 0;
  without_gil([&] {
    for (Piece& piece : pieces)
      if (!error) error = fill_piece(arena, pool, piece);
  });
  for (const Piece& piece : pieces)
    if (piece.file) piece.file->check(piece.read_error);
  check_written(error);
}

Packed pack_into(Arena& arena, Pool& pool, const std::string& format, Bytes source, int rows, int cols) {
  if (source.size() != source_bytes(format_of(format), rows, cols))
    throw std::invalid_argument("a " + format + " matrix has the wrong number of bytes");
  Packed packed = arena.reserve(format, rows, cols);
  const auto bytes = [&](size_t at, size_t, auto&) { return source.data() + at; };
  check_written(without_gil([&] { return arena.fill(pool, packed, {bytes}, 0, rows); }));
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
      .def("fill", &fill, "pool"_a, "pieces"_a,
           "pieces: (matrix, FileBytes or uint8 (bytes,), first row) of each piece, which is whole panels.");
  m.def("packed_bytes", [](const std::string& format, int rows, int cols) {
    return Arena::bytes_of(format_of(format), rows, cols);
  }, "format"_a, "rows"_a, "cols"_a);
  m.def("patterns", &patterns, "name"_a, "What IQ1, IQ2_XXS … IQ3_S name by a number: digits of 2 or 3 bits.");

  bind_files(m);
  bind_merges(m);
  bind_plan(m);
  bind_device(m);
  bind_sampler(m);
  bind_measure(m);
  bind_quantise(m);
}
