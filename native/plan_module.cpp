// The Python face of a plan: the ops that are added to it and what they are made from, its runs, its KV blocks and states.
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
#include "experts.h"
#include "file_bytes.h"
#include "ops.h"

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
  const auto found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) throw std::invalid_argument("keys and values are not stored as " + name);
  return (KvFormat)(found - std::begin(kNames));
}
KvFormats kv_formats(const std::string& kv) {  // "q8_0", or "q8_0,q4_0": of keys, of values
  const size_t comma = kv.find(',');
  const KvFormat keys = kv_format(kv.substr(0, comma));
  return {keys, comma == kv.npos ? keys : kv_format(kv.substr(comma + 1))};
}
Rows rows_of(bool logits) { return logits ? Rows::kLogits : Rows::kAll; }

std::vector<float> floats(const Floats& a) { return {a.data(), a.data() + a.size()}; }

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
  const std::optional<Given> hidden_from = field<"hidden_from", std::optional<Given>>(of);
  const std::optional<Given> given = field<"given", std::optional<Given>>(of);
  const std::optional<Table> states = field<"states", std::optional<Table>>(of);

  // Throws std::invalid_argument where their sizes do not fit; what is in them the plan checks.
  Batch batch(int input_width) const;
};

Batch Arrays::batch(int input_width) const {
  const size_t rows = tokens.size();
  if (positions.size() != rows || sequences.size() != rows || (limits && limits->size() != rows) ||
      (types && types->size() != rows))
    throw std::invalid_argument("batch: tokens, positions, sequences, limits and types differ in length");
  if (hidden_from && (hidden_from->shape(0) != tables.shape(0) || hidden_from->shape(1) != tables.shape(1) * kKvBlock))
    throw std::invalid_argument("batch: hidden_from is not as large as the block tables");
  if (given ? given->shape(0) != rows || (int)given->shape(1) != input_width : input_width > 0)
    throw std::invalid_argument("batch: given has not as many rows, or numbers in each, as the plan takes");
  if (states && states->shape(1) != 2) throw std::invalid_argument("batch: states are not rows and slots");
  const auto data = [](const auto& array) { return array ? array->data() : nullptr; };
  return {.tokens = tokens.data(), .positions = positions.data(), .sequences = sequences.data(), .tables = tables.data(),
          .logit_rows = logit_rows.data(), .rows = (int)rows, .table_rows = (int)tables.shape(0),
          .table_cols = (int)tables.shape(1), .logits = (int)logit_rows.size(), .limits = data(limits),
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
  return made(rows, width, [&](float* out) { plan.read(view(from), rows, width, out); });
}

void write_buffer(Plan& plan, Where to, Ints rows, Given numbers) {
  if (numbers.shape(0) != rows.size()) throw std::invalid_argument("write: the rows are not as many");
  plan.write(view(to), rows.data(), rows.size(), (int)numbers.shape(1), numbers.data());
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

using RelativeTuple = std::tuple<Where, Where, int, std::vector<int32_t>>;
using PartTuple = std::tuple<Packed*, Where, std::vector<float>, int>;

void add_linear(Plan& plan, bool logits, const Places& in, const std::vector<PartTuple>& parts, bool adds,
                std::optional<std::string> gate) {
  std::vector<Linear::Part> list;
  for (const auto& [weight, out, bias, column] : parts) list.push_back({*weight, view(out), bias, column});
  Linear::Finish finish{adds};
  if (gate) finish.gate = map_of(*gate);
  plan.add(std::make_unique<Linear>(rows_of(logits), in, finish, std::move(list)), true);
}

using ExpertTuple = std::tuple<Packed*, Packed*, Packed*>;
using Biases = std::vector<std::vector<float>>;  // by expert; empty: none

void add_experts(Plan& plan, bool logits, const Places& in, Where scores, const Mixture& mixture,
                 const std::vector<ExpertTuple>& experts, Where out, Where inner, const std::array<Biases, 3>& biases) {
  if (experts.empty()) throw std::invalid_argument("there are no experts");
  const auto biased = [&](const Packed& weight, int role, size_t i) {
    return Biased{weight, biases[role].empty() ? std::vector<float>() : biases[role].at(i)};
  };
  std::vector<Expert> list;
  for (const auto& [gate, up, down] : experts) {
    Expert e{{}, biased(*up, 1, list.size()), biased(*down, 2, list.size())};
    if (gate) e.gate = biased(*gate, 0, list.size());
    list.push_back(std::move(e));
  }
  Experts::Args args{rows_of(logits), in, view(scores), mixture, view(out), view(inner)};
  plan.add(std::make_unique<Experts>(std::move(args), std::move(list)), true);
}

// Bytes of one, of which there must be as many as tokens.
size_t stored_row(const Plan& plan, const std::string& format, size_t bytes, int cols) {
  const size_t row = source_bytes(format_of(format), 1, cols);
  if (bytes / row < (size_t)plan.vocab()) throw std::invalid_argument("fewer rows than tokens");
  return row;
}

template <Embed::By by> void add_embed(Plan& plan, const Packed& table, Where out) {
  plan.add(std::make_unique<Embed>(plan, table, view(out), by));
}

// What the ops of a plan are made from.
void bind_arguments(nb::module_& m) {
  nb::list elementwise, gates;
  for (const auto& [name, form] : kMaps) {
    elementwise.append(name);
    if (form == Form::gate) gates.append(name);
  }
  m.attr("ELEMENTWISE") = nb::tuple(elementwise);
  m.attr("GATES") = nb::tuple(gates);

  nb::class_<Places>(m, "Places", "Where a tensor is: its floats, its quant blocks (a buffer's number), or both.")
      .def("__init__", [](Places* self, Where floats, int act) { new (self) Places{view(floats), act}; },
           "floats"_a = Where{-1, 0}, "act"_a = -1);
  nb::class_<Norm>(m, "Norm", "What a row is divided by; see ops.h.")
      .def("__init__", [](Norm* self, Floats weight, Floats bias, float eps, int group) {
        new (self) Norm{floats(weight), floats(bias), eps, group};
      }, "weight"_a, "bias"_a, "eps"_a, "group"_a);
  nb::class_<Rotation>(m, "Rotation", "How pairs of a head's numbers are rotated; see plan.h.")
      .def(nb::init<std::vector<double>, bool, float, double, int, int>(), "frequencies"_a, "rotate_half"_a, "attention_factor"_a,
           "growth"_a = 0, "period"_a = 1, "offset"_a = 0)
      .def("__eq__", [](const Rotation& a, nb::object b) {
        return nb::isinstance<Rotation>(b) && a == nb::cast<const Rotation&>(b);
      });
  nb::class_<Mixture>(m, "ExpertsShape", "How experts are chosen and weighed; see compute/model/mixture.py.")
      .def("__init__", [](Mixture* self, int used, const std::string& gating, bool normed, float scale, int groups,
                          int used_groups, int best_of_group, const std::string& activation, float limit, bool weighs_input, double tolerance,
                          Floats bias) {
        new (self) Mixture{used, gating_of(gating), normed, scale, groups, used_groups, best_of_group, map_of(activation), limit,
                           weighs_input, tolerance, floats(bias)};
      }, nb::kw_only(), "used"_a, "gating"_a, "normed"_a, "scale"_a, "groups"_a, "used_groups"_a, "best_of_group"_a, "activation"_a,
         "limit"_a, "weighs_input"_a, "tolerance"_a, "bias"_a);
  nb::class_<AttendShape>(m, "AttendShape", "The sizes of an attention; see ops.h.")
      .def(nb::init<int, int, int, float, float, int, int, bool, int, int, int, int>(), nb::kw_only(), "heads"_a,
           "kv_heads"_a, "head_dim"_a, "scale"_a, "softcap"_a, "window"_a, "reach"_a, "chunked"_a = false, "layer"_a = 0,
           "reads"_a = -1, "value_first"_a = 0, "value_dim"_a = 0);
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
        std::vector<std::tuple<std::vector<int64_t>, int64_t, int64_t>> found;
        for (const KeptExperts* each : p.kept_experts()) found.emplace_back(each->chosen(), each->found(), each->read());
        return found;
      }, "Of each op whose experts are not all kept: how often each was chosen; how many were in memory, how many not.")
      .def("beside", [](const Plan& p) { return new Plan(&p); }, nb::rv_policy::take_ownership,
           "An empty plan on the same threads, tier, keys and values.")
      .def_prop_ro("prefetch", &Plan::prefetch)
      .def_prop_ro("tier", [](const Plan& p) { return p.kernels->name; })
      .def_prop_ro("window_blocks", [](Plan& p) { return p.kv(1).count(); },
                   "How many KV blocks have a place in the layers that see a window.")
      .def_prop_ro("length", &Plan::length, "How many ops there are.")
      .def("buffer", &Plan::add_buffer, "width"_a, "quantised"_a)
      .def_prop_ro("context", &Plan::context)
      .def("output", [](Plan& p, Where out) { p.set_output(view(out)); }, "out"_a)
      .def("given", [](Plan& p, Where in) { p.set_input(view(in)); }, "x"_a)
      .def("embed", &add_embed<Embed::By::kToken>, "table"_a, "out"_a)
      .def("embed_positions", &add_embed<Embed::By::kPosition>, "table"_a, "out"_a)
      .def("embed_types", &add_embed<Embed::By::kType>, "table"_a, "out"_a)
      .def("embed_stored", [](Plan& p, const std::string& format, const FileBytes& table, int cols, Where out) {
        const size_t row = stored_row(p, format, table.size(), cols);
        const auto read = [table, row](std::span<const int32_t> rows, uint8_t* to) {
          if (rows.size() > 1)  // a disk can read several at once
            for (const int32_t i : rows) table.expect(i * row, row);
          for (size_t i = 0; i < rows.size(); i++) table.read(rows[i] * row, to + i * row, row);
        };
        p.add(std::make_unique<EmbedStored>(read, format_of(format), cols, view(out)));
      }, "format"_a, "table"_a, "cols"_a, "out"_a,
         "By token, of a matrix as the file has it, whose bytes are read when they are wanted; after embed.")
      .def("embed_stored", [](Plan& p, const std::string& format, Bytes table, int cols, Where out) {
        const size_t row = stored_row(p, format, table.size(), cols);
        const auto read = [at = table.data(), row](std::span<const int32_t> rows, uint8_t* to) {
          for (size_t i = 0; i < rows.size(); i++) memcpy(to + i * row, at + rows[i] * row, row);
        };
        p.add(std::make_unique<EmbedStored>(read, format_of(format), cols, view(out)));
      }, "format"_a, "table"_a, "cols"_a, "out"_a, nb::keep_alive<1, 3>(), "The same, of bytes that are in memory.")
      .def("gather", [](Plan& p, Where in, Where out, int width) {
        p.add(std::make_unique<Gather>(view(in), view(out), width));
      }, "x"_a, "out"_a, "width"_a)
      .def("reorder", [](Plan& p, bool logits, Where in, std::vector<int32_t> order, Where out) {
        p.add(std::make_unique<Reorder>(rows_of(logits), view(in), std::move(order), view(out)));
      }, "logits"_a, "x"_a, "order"_a, "out"_a, "Number i of a row becomes its number order[i].")
      .def("join", [](Plan& p, bool logits, std::tuple<Where, int> a, std::tuple<Where, int> b, int groups, Where out) {
        const auto part = [](const auto& from) { return Join::Part{view(std::get<0>(from)), std::get<1>(from)}; };
        p.add(std::make_unique<Join>(rows_of(logits), part(a), part(b), groups, view(out)));
      }, "logits"_a, "a"_a, "b"_a, "groups"_a, "out"_a, "a, b: where, and how many numbers of a group.")
      .def("normalise", [](Plan& p, bool logits, Where in, int width, const std::optional<Norm>& norm,
                           const Places& out) {
        p.add(std::make_unique<Normalise>(rows_of(logits), view(in), width, norm.value_or(Norm{{}, {}, 0, 0}), out));
      }, "logits"_a, "x"_a, "width"_a, "norm"_a.none(), "out"_a, "norm None: to quant blocks alone.")
      .def("map", [](Plan& p, bool logits, const std::string& kind, Where a, Where b, float number, int width,
                     Where out, bool spread) {
        p.add(std::make_unique<Elementwise>(Elementwise::Args{
            rows_of(logits), map_of(kind), view(a), view(b), number, width, view(out), spread}));
      }, "logits"_a, "kind"_a, "a"_a, "b"_a, "number"_a, "width"_a, "out"_a, "spread"_a = false,
         "spread: a has one number for all of a row.")
      .def("linear", &add_linear, "logits"_a, "x"_a, "parts"_a, "adds"_a = false, "gate"_a = nb::none())
      .def("experts", &add_experts, "logits"_a, "x"_a, "scores"_a, "mixture"_a, "experts"_a, "out"_a,
           "inner"_a = Where{-1, 0}, "biases"_a = std::array<Biases, 3>{},
           "inner: where to leave what each expert's down reads, by rank; biases: of gate, up and down.")
      .def("attend", [](Plan& p, Where q, Where k, Where v, Where out, const AttendShape& shape, Rotation rotation,
                        std::vector<float> sinks, Floats bias, const std::optional<RelativeTuple>& relative) {
        const Attend::Views at{view(q), view(k), view(v), view(out)};
        Relative by;
        if (relative)
          by = {view(std::get<0>(*relative)), view(std::get<1>(*relative)), std::get<2>(*relative), std::get<3>(*relative)};
        p.add(std::make_unique<Attend>(p, at, shape, std::move(rotation), std::move(sinks), floats(bias), std::move(by)));
      }, "q"_a, "k"_a, "v"_a, "out"_a, "shape"_a, "rotation"_a, "sinks"_a, "bias"_a, "relative"_a = nb::none(),
         "relative: where queries and keys have their numbers by distance, how many a head, and which by distance.")
      .def("rotate", [](Plan& p, Where in, Where out, int heads, int head_dim, Rotation rotation) {
        p.add(std::make_unique<Rotate>(p, view(in), view(out), heads, head_dim, std::move(rotation)));
      }, "x"_a, "out"_a, "heads"_a, "head_dim"_a, "rotation"_a)
      .def("conv", [](Plan& p, Where in, Where out, Floats weight, Floats bias, int width, int taps) {
        p.add(std::make_unique<Conv>(p, view(in), view(out), ConvWeights{floats(weight), floats(bias), width, taps}));
      }, "x"_a, "out"_a, "weight"_a, "bias"_a, "width"_a, "taps"_a)
      .def("delta_net", [](Plan& p, Where qkv, Where a, Where b, Where out, std::tuple<int, int, int, int, bool> shape,
                           Floats scale, Floats dt) {
        const auto [k_heads, heads, keys, values, grouped] = shape;
        p.add(std::make_unique<DeltaNet>(p, DeltaNet::Views{view(qkv), view(a), view(b), view(out)},
                                         DeltaShape{k_heads, heads, keys, values, grouped}, floats(scale), floats(dt)));
      }, "qkv"_a, "a"_a, "b"_a, "out"_a, "shape"_a, "scale"_a, "dt"_a)
      .def("mamba2", [](Plan& p, Where vkq, Where dt, Where out, std::tuple<int, int, int, int> shape, Floats scale,
                        Floats dt_bias, Floats skip) {
        const auto [groups, heads, keys, values] = shape;
        p.add(std::make_unique<Mamba>(p, Mamba::Views{view(vkq), view(dt), view(out)},
                                      Mamba::Shape{groups, heads, keys, values},
                                      Mamba::Weights{floats(scale), floats(dt_bias), floats(skip)}));
      }, "vkq"_a, "dt"_a, "out"_a, "shape"_a, "scale"_a, "dt_bias"_a, "skip"_a)
      .def("read", &read_buffer, "buffer"_a, "rows"_a, "width"_a,
           "What the last run left in a buffer that nothing has written over since: (rows, width).")
      .def("write", &write_buffer, "buffer"_a, "rows"_a, "numbers"_a,
           "Write over rows of numbers between two pieces of a run.")
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
  m.def("kv_block_bytes", [](int kv_heads, int head_dim, const std::string& kv, bool values) {
    const KvFormats f = kv_formats(kv);
    return key_bytes(f.keys, kv_heads, head_dim) + (values ? value_bytes(f.values, kv_heads, head_dim) : 0);
  }, "kv_heads"_a, "head_dim"_a, "kv"_a = "f16", "values"_a = true,
        "Of one layer's keys and values, or keys alone, of KV_BLOCK tokens.");
  bind_arguments(m);
  bind_class(m);
}
