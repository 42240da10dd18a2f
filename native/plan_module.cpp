// The Python face of a plan: what is added to it, its runs, its KV blocks and states.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string.h>

#include <span>
#include <stdexcept>
#include <string>
#include <tuple>

#include "arrays.h"
#include "calls.h"
#include "file_bytes.h"

using namespace nanobind::literals;
using namespace cutaway;

namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Where = std::tuple<int, int>;  // buffer, column

View view(Where w) { return {std::get<0>(w), std::get<1>(w)}; }
KvFormat kv_format(const std::string& name) {
  constexpr const char* kNames[] = {"f16", "q8_0", "q5_1", "q4_0"};
  const auto match = std::find(std::begin(kNames), std::end(kNames), name);
  if (match == std::end(kNames)) throw std::invalid_argument("keys and values are not stored as " + name);
  return (KvFormat)(match - std::begin(kNames));
}
KvFormats kv_formats(const std::string& kv) {  // "q8_0", or "q8_0,q4_0": of keys, of values
  const size_t comma = kv.find(',');
  const KvFormat keys = kv_format(kv.substr(0, comma));
  return {keys, comma == kv.npos ? keys : kv_format(kv.substr(comma + 1))};
}
using Given = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A name, as an argument of a template.
template <size_t n> struct Name {
  consteval Name(const char (&name)[n]) { std::copy_n(name, n, text); }
  char text[n];
};

// The array of that name, or None where there may be none.
template <Name name, class Array> Array field(nb::handle batch) {
  static PyObject* const interned = PyUnicode_InternFromString(name.text);  // a step reads all fields: made anew, ten took 0.9 us
  const nb::object value = nb::steal(PyObject_GetAttr(batch.ptr(), interned));
  if (!value.is_valid()) throw nb::python_error();
  Array array;
  if (!nb::try_cast(value, array))
    throw nb::type_error((std::string("batch: ") + name.text + " has not the type or the dimensions that it must have").c_str());
  return array;
}

// The arrays of Python's Batch (compute/backends/base.py), which stay alive while it runs.
struct Arrays {
  const nb::handle of;
  const Ints tokens = field<"tokens", Ints>(of), positions = field<"positions", Ints>(of);
  const Ints sequences = field<"sequences", Ints>(of), logit_rows = field<"logit_rows", Ints>(of);
  const Table tables = field<"block_tables", Table>(of);
  const std::optional<Ints> limits = field<"limits", std::optional<Ints>>(of), types = field<"types", std::optional<Ints>>(of);
  const std::optional<Ints> window_ends = field<"window_ends", std::optional<Ints>>(of);
  const std::optional<Given> hidden_from = field<"hidden_from", std::optional<Given>>(of);
  const std::optional<Given> given = field<"given", std::optional<Given>>(of);
  const std::optional<Table> states = field<"states", std::optional<Table>>(of);

  // Throws std::invalid_argument where their sizes do not fit; what is in them the plan checks.
  Batch batch(int input_width) const;
};

Batch Arrays::batch(int input_width) const {
  const size_t rows = tokens.size();
  if (positions.size() != rows || sequences.size() != rows || (limits && limits->size() != rows) ||
      (window_ends && window_ends->size() != rows) || (types && types->size() != rows))
    throw std::invalid_argument("batch: tokens, positions, sequences, limits, windows and types differ in length");
  if (hidden_from && (hidden_from->shape(0) != tables.shape(0) || hidden_from->shape(1) != tables.shape(1) * kKvBlock))
    throw std::invalid_argument("batch: hidden_from is not as large as the block tables");
  if (given ? given->shape(0) != rows || (int)given->shape(1) != input_width : input_width > 0)
    throw std::invalid_argument("batch: given has not as many rows, or numbers in each, as the plan takes");
  if (states && states->shape(1) != 2) throw std::invalid_argument("batch: states are not rows and slots");
  const auto data = [](const auto& array) { return array ? array->data() : nullptr; };
  return {.tokens = tokens.data(), .positions = positions.data(), .sequences = sequences.data(), .tables = tables.data(),
          .logit_rows = logit_rows.data(), .rows = (int)rows, .table_rows = (int)tables.shape(0),
          .table_cols = (int)tables.shape(1), .logits = (int)logit_rows.size(), .limits = data(limits), .window_ends = data(window_ends),
          .hidden_from = data(hidden_from), .stored = data(states), .states = states ? (int)states->shape(0) : 0,
          .types = data(types), .given = data(given)};
}

Numbers run(Plan& plan, nb::handle batch, size_t first, std::optional<size_t> last) {
  const Arrays arrays{batch};
  const Batch rows = arrays.batch(plan.input_width());
  const float* logits = without_gil([&] { return plan.run(rows, first, last.value_or(plan.length())); });
  return {(void*)logits, {(size_t)rows.logits, (size_t)plan.output_width()}, nb::find(plan)};
}

Numbers run_on(Plan& plan, Given x) {
  if ((int)x.shape(1) != plan.input_width())
    throw std::invalid_argument("run_on: the numbers are not as wide as the plan's input");
  const float* out = without_gil([&] { return plan.run_on(x.data(), (int)x.shape(0)); });
  return {(void*)out, {x.shape(0), (size_t)plan.output_width()}, nb::find(plan)};
}

Numbers read_buffer(const Plan& plan, Where from, int rows, int width) {
  return new_array(rows, width, [&](float* out) { plan.read(view(from), rows, width, out); });
}

void write_buffer(Plan& plan, Where to, Given numbers) {
  plan.write(view(to), (int)numbers.shape(0), (int)numbers.shape(1), numbers.data());
}

Numbers read_stored_kv(Bytes memory, const std::string& kv, bool values, int kv_heads, int head_dim) {
  const KvFormats f = kv_formats(kv);
  const KvFormat format = values ? f.values : f.keys;
  if (memory.size() < (values ? value_bytes(format, kv_heads, head_dim) : key_bytes(format, kv_heads, head_dim)))
    throw std::invalid_argument("read_kv: a KV block has more bytes than these");
  return new_array(kv_heads * kKvBlock, head_dim, [&](float* out) { read_kv(format, values, memory.data(), kv_heads, head_dim, out); });
}

Numbers round_all(Given x) {
  const int rows = (int)x.shape(0), cols = (int)x.shape(1);
  if (cols % kQuant) throw std::invalid_argument("round_activations: a row has no whole number of 32");
  return new_array(rows, cols, [&](float* out) { round_activations(*choose_kernels(""), x.data(), rows * cols, out); });
}

template <void (Plan::*copy)(const int32_t*, const int32_t*, size_t)>
void copy_pairs(Plan& plan, Ints sources, Ints targets) {
  if (sources.size() != targets.size())
    throw std::invalid_argument("copies of KV blocks: sources and targets differ in length");
  without_gil([&] { (plan.*copy)(sources.data(), targets.data(), sources.size()); });
}

std::vector<nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>> block_memory(Plan& plan, int block, bool windows) {
  std::vector<nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>> pieces;
  for (const auto& [memory, bytes] : plan.block_memory(block, windows))
    pieces.push_back({memory, {bytes}, nb::find(plan)});
  return pieces;
}

std::optional<nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>> state_memory(Plan& plan, int slot, bool find) {
  uint8_t* memory = plan.state_memory(slot, find);
  if (!memory) return {};
  return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(memory, {plan.states().bytes()}, nb::find(plan));
}

// Numbers alone, as numbers.h reads them: of words, numbers, arrays of float32 and lists of these. local/core.js has the same.
void flatten(nb::handle value, std::vector<double>& to) {
  if (PyTuple_Check(value.ptr()) || PyList_Check(value.ptr())) {
    to.push_back((double)nb::len(value));
    for (nb::handle item : value) flatten(item, to);
  } else if (nb::isinstance<nb::str>(value)) {
    const std::string letters = nb::cast<std::string>(value);
    to.push_back((double)letters.size());
    to.insert(to.end(), letters.begin(), letters.end());
  } else if (PyFloat_Check(value.ptr()) || PyLong_Check(value.ptr())) {  // most are, and to ask whether one is an array takes long
    to.push_back(nb::cast<double>(value));
  } else if (Floats array; nb::try_cast(value, array, false)) {
    to.push_back((double)array.size());
    to.insert(to.end(), array.data(), array.data() + array.size());
  } else {
    to.push_back(nb::cast<double>(value));
  }
}

void add_all(Plan& plan, nb::handle calls, std::vector<Packed> matrices, std::vector<StoredTable> stored) {
  std::vector<double> numbers;
  flatten(calls, numbers);
  Reader list(numbers.data(), numbers.size());
  add_calls(plan, list, {std::move(matrices), std::move(stored)});
}

void bind_stored(nb::module_& m) {
  nb::class_<StoredTable>(m, "StoredTable", "A matrix as the file has it, whose rows are read when they are wanted.")
      .def("__init__", [](StoredTable* self, const std::string& format, const FileBytes& table) {
        new (self) StoredTable{format_of(format), table.size(), [table](std::span<const int32_t> rows, size_t row, uint8_t* to) {
          if (rows.size() > 1)  // a disk can read several at once
            for (const int32_t i : rows) table.expect(i * row, row);
          for (size_t i = 0; i < rows.size(); i++) table.read(rows[i] * row, to + i * row, row);
        }};
      }, "format"_a, "table"_a)
      .def("__init__", [](StoredTable* self, const std::string& format, Bytes table) {
        new (self) StoredTable{format_of(format), table.size(), [table](std::span<const int32_t> rows, size_t row, uint8_t* to) {
          for (size_t i = 0; i < rows.size(); i++) memcpy(to + i * row, table.data() + rows[i] * row, row);
        }};
      }, "format"_a, "table"_a, "The same, of bytes that are in memory.");
}

void bind_class(nb::module_& m) {
  nb::class_<Plan>(m, "Plan")
      .def("__init__",
           [](Plan* self, std::shared_ptr<Pool> pool, const std::string& tier, int kv_blocks, int context,
              const std::string& prefetch, const std::string& kv, int draft_states) {
             new (self) Plan(std::move(pool), choose_kernels(tier.c_str()),
                             {kv_blocks, context, draft_states, kv_formats(kv), prefetch});
           }, "pool"_a, "tier"_a, "kv_blocks"_a, "context"_a, "prefetch"_a = "", "kv"_a = "f16", "draft_states"_a = 0)
      .def("set_resident_budget", &Plan::set_resident_budget, "bytes"_a, "experts"_a = 1.0,
           "See plan.h; to be set before ops are added.")
      .def_prop_ro("kept_experts", [](const Plan& p) {
        std::vector<std::tuple<std::vector<int64_t>, int64_t, int64_t>> counts;
        for (const KeptExperts* experts : p.kept_experts()) counts.emplace_back(experts->choices(), experts->hits(), experts->misses());
        return counts;
      }, "Of each op whose experts are not all kept: how often each was chosen; how many were in memory, how many not.")
      .def("beside", [](const Plan& p) { return new Plan(&p); }, nb::rv_policy::take_ownership,
           "An empty plan on the same threads, tier, keys and values.")
      .def_prop_ro("prefetch", &Plan::prefetch)
      .def_prop_ro("tier", [](const Plan& p) { return p.kernels->name; })
      .def_prop_ro("window_blocks", [](Plan& p) { return p.kv(1).count(); },
                   "How many KV blocks have a place in the layers that see a window.")
      .def_prop_ro("context", &Plan::context)
      .def("add", &add_all, "calls"_a, "matrices"_a, "stored"_a = nb::list(),
           "What calls say (compute/lowering/calls.py), which name matrices and stored tables by their numbers.")
      .def("read", &read_buffer, "buffer"_a, "rows"_a, "width"_a,
           "What the last run left in a buffer that nothing has written over since: (rows, width).")
      .def("write", &write_buffer, "buffer"_a, "numbers"_a,
           "Write over a buffer's first rows between two pieces of a run.")
      .def("copy_blocks", &copy_pairs<&Plan::copy_blocks>, "sources"_a, "targets"_a)
      .def("copy_windows", &copy_pairs<&Plan::copy_windows>, "sources"_a, "targets"_a)
      .def("copy_states", &copy_pairs<&Plan::copy_states>, "sources"_a, "targets"_a)
      .def("state_memory", &state_memory, "slot"_a, "new"_a)
      .def("block_memory", &block_memory, "block"_a, "windows"_a)
      .def("run_on", &run_on, "numbers"_a)
      .def("run", &run, "batch"_a, "first"_a = 0, "last"_a = nb::none(),
           "Logits; with first and last, those ops alone, of a run that is made piece by piece.");
}

}  // namespace

void bind_plan(nb::module_& m) {
  m.attr("KV_BLOCK") = kKvBlock;
  m.def("kv_block_bytes", [](int kv_heads, int key_dim, int value_dim, const std::string& kv) {
    const KvFormats f = kv_formats(kv);
    return key_bytes(f.keys, kv_heads, key_dim) + (value_dim ? value_bytes(f.values, kv_heads, value_dim) : 0);
  }, "kv_heads"_a, "key_dim"_a, "value_dim"_a, "kv"_a = "f16",
        "Of one layer's keys and values of KV_BLOCK tokens; value_dim 0: of keys alone.");
  m.def("read_kv", &read_stored_kv, "memory"_a, "kv"_a, "values"_a, "kv_heads"_a, "head_dim"_a,
        "A layer's keys, or its values, at the beginning of some of a KV block's memory: (kv_heads * KV_BLOCK, head_dim).");
  m.def("round_activations", &round_all, "x"_a, "Rows as quantised matrices read them: each 32 are whole multiples of a step.");
  nb::list elementwise, gates;
  for (const auto& [name, form, expression] : kMaps) {
    elementwise.append(name);
    if (form == Form::gate) gates.append(name);
  }
  m.attr("ELEMENTWISE") = nb::tuple(elementwise);
  m.attr("GATES") = nb::tuple(gates);
  bind_stored(m);
  bind_class(m);
}
