// The strings of a vocabulary, of which a file has hundreds of thousands, as Python's.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <string.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Strings from `position` on, each behind its length, and the position after them: fewer than `count` where one would not end in
// `data`. Bytes that are not UTF-8 become lone surrogates.
std::pair<nb::list, size_t> strings(Bytes data, size_t position, size_t count) {
  nb::list found;
  uint64_t length;
  const size_t size = data.size();
  while (found.size() < count && position <= size && size - position >= sizeof length) {
    memcpy(&length, data.data() + position, sizeof length);
    const size_t start = position + sizeof length;
    if (length > size - start) break;
    PyObject* text = PyUnicode_DecodeUTF8((const char*)data.data() + start, (Py_ssize_t)length, "surrogateescape");
    if (!text) throw nb::python_error();
    found.append(nb::steal(text));
    position = start + length;
  }
  return {found, position};
}

}  // namespace

void bind_strings(nb::module_& m) {
  m.def("strings", &strings, "data"_a, "position"_a, "count"_a,
        "Strings from this byte on, each behind its length (uint64), and the byte after them: fewer than `count` where one would "
        "not end in `data`. Bytes that are not UTF-8 become lone surrogates.");
}
