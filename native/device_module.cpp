// What a backend on another device asks for: layouts of formats, packed bytes, rows of stored tables, cosines.
//
// Knows no such device, and no plan.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "arrays.h"
#include "ops.h"

using namespace nanobind::literals;
using namespace cutaway;

namespace {

constexpr const char* kScales[] = {"half", "shared", "byte", "e8m0", "e4m3", "group", "affine"};  // as Scale has them

// A format's layout, by the names of formats.h.
nb::dict layout(const std::string& name) {
  const Format format = kernel_of(format_of(name));
  nb::dict fields;
  if (is_float(format)) return fields;
  const Layout& l = kLayouts[format];
  fields["bits"] = l.bits, fields["sub"] = l.sub, fields["offset"] = l.offset, fields["scale"] = kScales[(int)l.scale];
  fields["minima"] = l.minima, fields["blocks"] = l.blocks, fields["unit"] = l.unit;
  std::vector<int> values;
  for (int i = 0; l.values && i < 1 << l.bits; i++) values.push_back(l.values[i]);
  fields["values"] = values;
  return fields;
}

using Packing = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>;

Packing bytes_of(const Packed& packed) {
  auto* owner = new std::shared_ptr<Memory>(packed.owner);
  return Packing(packed.data, {packed.bytes()}, nb::capsule(owner, [](void* p) noexcept { delete (std::shared_ptr<Memory>*)p; }));
}

// Panels from elsewhere, written into a matrix of an arena.
void fill_panels(const Packed& packed, size_t at, Bytes panels) {
  if (at > packed.bytes() || panels.size() > packed.bytes() - at) throw std::out_of_range("panels");
  std::copy_n(panels.data(), panels.size(), const_cast<uint8_t*>(packed.data) + at);  // reserved, and filled by no one else
}

// Rows of a matrix whose panels were copied from elsewhere.
Numbers decode_panels(const std::string& name, Bytes panels, int first, int last, int cols, float factor) {
  const Format format = format_of(name);
  const size_t panel = panel_bytes(format, cols);
  if (first < 0 || first > last || (size_t)((last + kLanes - 1) / kLanes) * panel > panels.size()) throw std::out_of_range("rows");
  const Packed packed{format, last, cols, panel, panels.data(), nullptr, factor};
  return new_array(last - first, cols, [&](float* out) {
    for (int row = first; row < last; row++, out += cols) packed.decode_row(row, out);
  });
}

using Positions = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Rows of (cosine, sine) of each pair.
Numbers angles_at(Angles& angles, Positions positions) {
  const size_t width = 2 * angles.rotation().frequencies.size();
  for (size_t i = 0; i < positions.size(); i++) {
    if (positions(i) < 0) throw std::invalid_argument("a position is below 0");
    angles.reach(positions(i));
  }
  return new_array((int)positions.size(), (int)width, [&](float* out) {
    for (size_t i = 0; i < positions.size(); i++) std::copy_n(angles.row(positions(i)), width, out + i * width);
  });
}

Numbers stored_rows(const StoredTable& table, Positions tokens, int cols) {
  const size_t row_bytes = source_bytes(table.format, 1, cols);
  for (size_t i = 0; i < tokens.size(); i++)
    if (tokens(i) < 0) throw std::invalid_argument("a token is below 0");
  std::vector<uint8_t> bytes(tokens.size() * row_bytes);
  table.look_up({tokens.data(), tokens.size()}, row_bytes, bytes.data());
  return new_array((int)tokens.size(), cols, [&](float* out) {
    for (size_t i = 0; i < tokens.size(); i++) decode_stored_row(table.format, &bytes[i * row_bytes], cols, out + i * cols);
  });
}

}  // namespace

void bind_device(nb::module_& m) {
  m.def("layout", &layout, "format"_a, "The layout of a format's panels (native/formats.h); empty for formats of floats.");
  m.def("panel_bytes", [](const std::string& format, int cols) { return panel_bytes(kernel_of(format_of(format)), cols); },
        "format"_a, "cols"_a);
  m.def("kernel_format", [](const std::string& name) {
    return std::string(format_name(kernel_of(format_of(name))));
  }, "format"_a, "The first format that is laid out alike.");
  m.def("packed", &bytes_of, "matrix"_a, "The bytes of a matrix's panels, one after the other, not copied.");
  m.def("fill_panels", &fill_panels, "matrix"_a, "at"_a, "panels"_a, "Panels of a reserved matrix, from byte `at` on.");
  m.def("decode_panels", &decode_panels, "format"_a, "panels"_a, "first"_a, "last"_a, "cols"_a, "factor"_a = 1.0f,
        "Rows of a matrix as floats, exactly: (last - first, cols).");
  m.def("stored_rows", &stored_rows, "table"_a, "tokens"_a, "cols"_a, "Tokens' rows of a stored table as floats: (tokens, cols).");
  nb::list expressions;
  for (const auto& map : kMaps) expressions.append(map.expression);
  m.attr("ELEMENTWISE_EXPRESSIONS") = nb::tuple(expressions);
  nb::class_<Angles>(m, "Angles", "The cosines and sines of a rotation.")
      .def("__init__", [](Angles* self, std::vector<double> frequencies, bool halves, float factor, double growth, int period,
                          int offset, bool is_smooth) {
        new (self) Angles({std::move(frequencies), halves, factor, growth, period, offset, is_smooth});
      }, "frequencies"_a, "rotate_half"_a = false, "attention_factor"_a = 1.0f, "growth"_a = 0.0, "period"_a = 1, "offset"_a = 0,
         "is_smooth"_a = false)
      .def("at", &angles_at, "positions"_a, "The cosine and sine of every pair at each position: (positions, 2 * pairs).");
}
