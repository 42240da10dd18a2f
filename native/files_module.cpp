// What is read of a model's file: its bytes, and the strings of a vocabulary, of which it has hundreds of thousands.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <string.h>

#include "file_bytes.h"
#include "gil.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace cutaway;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NewBytes = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>;

NewBytes read_slice(const FileBytes& bytes, nb::slice slice) {
  const auto [first, end, step, count] = slice.compute(bytes.size());
  if (step != 1) throw std::invalid_argument("bytes of a file are read in their order");
  auto* out = new uint8_t[count];
  nb::capsule owner(out, [](void* p) noexcept { delete[] (uint8_t*)p; });
  without_gil([&] { bytes.read(first, out, count); });
  return {out, {count}, owner};
}

// Strings from `position` on, each behind its length, and the position after them: fewer than `count` where one would not end in
// `data`. Bytes that are not UTF-8 become lone surrogates.
std::pair<nb::list, size_t> strings(Bytes data, size_t position, size_t count) {
  nb::list texts;
  uint64_t length;
  const size_t size = data.size();
  while (texts.size() < count && position <= size && size - position >= sizeof length) {
    memcpy(&length, data.data() + position, sizeof length);
    const size_t start = position + sizeof length;
    if (length > size - start) break;
    PyObject* text = PyUnicode_DecodeUTF8((const char*)data.data() + start, (Py_ssize_t)length, "surrogateescape");
    if (!text) throw nb::python_error();
    texts.append(nb::steal(text));
    position = start + length;
  }
  return {texts, position};
}

}  // namespace

void bind_files(nb::module_& m) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void* changed) {
    try {
      std::rethrow_exception(thrown);
    } catch (const FileError& error) {
      PyErr_SetObject((PyObject*)changed, nb::make_tuple(error.name, error.what()).ptr());
    }
  }, nb::object(nb::module_::import_("cutaway.errors").attr("FileChangedError")).release().ptr());
  nb::class_<FileBytes>(m, "FileBytes", "Bytes of a file, which are read when they are sliced, into new memory.")
      .def(nb::init<int, std::string>(), "file"_a, "name"_a, "All of a file; name: for errors.")
      .def("part", &FileBytes::part, "first"_a, "end"_a, "Some of them, which are not read yet.")
      .def("expect", [](const FileBytes& b) { b.expect(0, b.size()); },  // keeps the GIL: taking it back can cost more than the call
           "Tell the system that they will be read soon: the disk can begin.")
      .def_prop_ro("nbytes", &FileBytes::size)
      .def("__getitem__", &read_slice, "where"_a, "uint8 (bytes,), read-only. FileChangedError where the file has changed since it was opened.");
  m.def("strings", &strings, "data"_a, "position"_a, "count"_a,
        "Strings from this byte on, each behind its length (uint64), and the byte after them: fewer than `count` where one would "
        "not end in `data`. Bytes that are not UTF-8 become lone surrogates.");
}
