// The Python face of the kernels: numbers and arrays in, arrays out, the GIL released while it works.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <errno.h>
#include <string.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>

#include "gil.h"
#include "experts.h"
#include "ops.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace cutaway;

void bind_sampler(nb::module_& m);  // sampler_module.cpp
void bind_measure(nb::module_& m);  // measure_module.cpp
void bind_quantise(nb::module_& m);  // quantise_module.cpp

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Where = std::tuple<int, int>;  // buffer, column


View view(Where w) { return {std::get<0>(w), std::get<1>(w)}; }
bool is_codes(const std::string& kv) {
  if (kv != "f16" && kv != "q8_0") throw std::invalid_argument("keys and values are not stored as " + kv);
  return kv == "q8_0";
}
Rows rows_of(bool logits) { return logits ? Rows::kLogits : Rows::kAll; }

// One allocation for all matrices of a model, in the order in which they are read; in a file where one is given.
struct Arena {
  Arena(size_t bytes, std::optional<int> file)
      : memory(file ? std::make_shared<Memory>(bytes, *file) : std::make_shared<Memory>(bytes)) {}
  std::shared_ptr<Memory> memory;
  Memory piece;  // what is packed before it is written
  size_t used = 0;

  Packed reserve(const std::string& format, int rows, int cols) {
    const Format f = format_of(format);
    const size_t bytes = (packed_bytes(f, rows, cols) + 63) / 64 * 64;
    if (bytes > memory->size() - used) throw std::invalid_argument("the arena is full");
    uint8_t* out = memory->data() + used;
    used += bytes;
    return {f, rows, cols, panel_bytes(f, cols), out, memory};
  }

  void fill(Pool& pool, const Packed& packed, Bytes source, int first) {
    const size_t row = source_bytes(packed.format, 1, packed.cols);
    const size_t rows = source.size() / row, left = packed.rows - first;
    if (first < 0 || first > packed.rows || first % kLanes || source.size() % row || rows > left ||
        (rows < left && rows % kLanes))
      throw std::invalid_argument("these bytes are no whole panels of the matrix");
    const size_t at = packed.data - memory->data();
    int error = 0;
    {
      WithoutGil release;
      if (memory->is_file()) error = write(pool, packed, source.data(), at + first / kLanes * packed.panel, (int)rows);
      else pack_rows(pool, packed, source.data(), first, (int)rows, memory->data() + at);
    }
    if (!error) return;
    errno = error;
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }

  int write(Pool& pool, const Packed& packed, const uint8_t* source, size_t at, int rows) {
    const size_t bytes = packed.panel * ((rows + kLanes - 1) / kLanes);
    if (piece.size() < bytes) piece = Memory(bytes);
    if (rows % kLanes) memset(piece.data(), 0, bytes);  // lanes without a row
    pack_rows(pool, packed, source, 0, rows, piece.data());
    return memory->write(at, piece.data(), bytes);
  }

  Packed add(Pool& pool, const std::string& format, Bytes source, int rows, int cols) {
    if (source.size() != source_bytes(format_of(format), rows, cols))
      throw std::invalid_argument("a " + format + " matrix has the wrong number of bytes");
    Packed packed = reserve(format, rows, cols);
    fill(pool, packed, source, 0);
    return packed;
  }
};

std::vector<float> floats(const Floats& a) { return {a.data(), a.data() + a.size()}; }

using Given = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

nb::ndarray<nb::numpy, float, nb::ndim<2>> run(Plan& plan, Ints tokens, Ints positions, Ints sequences,
                                               Table tables, Ints logit_rows, std::optional<Ints> limits,
                                               std::optional<Given> blind, size_t first, std::optional<size_t> last) {
  const size_t rows = tokens.size();
  if (positions.size() != rows || sequences.size() != rows || (limits && limits->size() != rows))
    throw std::invalid_argument("batch: tokens, positions, sequences and limits differ in length");
  if (blind && (blind->shape(0) != tables.shape(0) || blind->shape(1) != tables.shape(1) * kKvBlock))
    throw std::invalid_argument("batch: blind is not as large as the block tables");
  const Batch batch{tokens.data(), positions.data(), sequences.data(), tables.data(), logit_rows.data(),
                    (int)rows, (int)tables.shape(0), (int)tables.shape(1), (int)logit_rows.size(),
                    limits ? limits->data() : nullptr, blind ? blind->data() : nullptr};
  const float* logits;
  {
    WithoutGil release;
    logits = plan.run(batch, first, last.value_or(plan.length()));
  }
  return {(void*)logits, {logit_rows.size(), (size_t)plan.width_of(plan.output)}, nb::find(plan)};
}

nb::ndarray<nb::numpy, float, nb::ndim<2>> run_on(Plan& plan, Given x) {
  if (plan.input.buffer < 0 || (int)x.shape(1) != plan.width_of(plan.input))
    throw std::invalid_argument("run_on: the numbers are not as wide as the plan's input");
  const float* out;
  {
    WithoutGil release;
    out = plan.run_on(x.data(), (int)x.shape(0));
  }
  return {(void*)out, {x.shape(0), (size_t)plan.width_of(plan.output)}, nb::find(plan)};
}

nb::ndarray<nb::numpy, float, nb::ndim<2>> decode(const Packed& packed, int first, int last) {
  if (first < 0 || first > last || last > packed.rows) throw std::out_of_range("rows");
  auto* numbers = new std::vector<float>((size_t)(last - first) * packed.cols);
  nb::capsule owner(numbers, [](void* p) noexcept { delete (std::vector<float>*)p; });
  {
    WithoutGil release;
    for (int row = first; row < last; row++)
      packed.decode_row(row, numbers->data() + (size_t)(row - first) * packed.cols);
  }
  return {numbers->data(), {(size_t)(last - first), (size_t)packed.cols}, owner};
}

nb::ndarray<nb::numpy, float, nb::ndim<2>> read_buffer(const Plan& plan, Where from, int rows, int width) {
  auto* numbers = new std::vector<float>((size_t)std::max(rows, 0) * std::max(width, 0));
  nb::capsule owner(numbers, [](void* p) noexcept { delete (std::vector<float>*)p; });
  plan.read(view(from), rows, width, numbers->data());
  return {numbers->data(), {(size_t)rows, (size_t)width}, owner};
}

void write_buffer(Plan& plan, Where to, Ints rows, Given numbers) {
  if (numbers.shape(0) != rows.size()) throw std::invalid_argument("write: the rows are not as many");
  plan.write(view(to), rows.data(), rows.size(), (int)numbers.shape(1), numbers.data());
}

void check_pairs(Ints sources, Ints targets) {
  if (sources.size() != targets.size())
    throw std::invalid_argument("copies of KV blocks: sources and targets differ in length");
}

void copy_blocks(Plan& plan, Ints sources, Ints targets) {
  check_pairs(sources, targets);
  WithoutGil release;
  plan.copy_blocks(sources.data(), targets.data(), sources.size());
}

std::vector<nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>> block_memory(Plan& plan, int block, bool windows) {
  std::vector<nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>> pieces;
  for (const auto& [memory, bytes] : plan.block_memory(block, windows))
    pieces.push_back({memory, {bytes}, nb::find(plan)});
  return pieces;
}

void copy_windows(Plan& plan, Ints sources, Ints targets) {
  check_pairs(sources, targets);
  WithoutGil release;
  plan.copy_windows(sources.data(), targets.data(), sources.size());
}

Map map_of(const std::string& name) {
  const std::pair<const char*, Map> kinds[] = {
      {"add", Map::kAdd},     {"silu_mul", Map::kSiluMul},     {"gelu_mul", Map::kGeluMul}, {"gelu", Map::kGelu},
      {"scale", Map::kScale}, {"gelu_exact", Map::kGeluExact}, {"softcap", Map::kSoftcap},
      {"gelu_exact_mul", Map::kGeluExactMul}};
  for (const auto& [known, kind] : kinds)
    if (name == known) return kind;
  throw std::invalid_argument("no kernel for " + name);
}

using PartTuple = std::tuple<Packed*, Where, std::vector<float>>;

void add_linear(Plan& plan, bool logits, Where in, int act, const std::string& finish,
                const std::vector<PartTuple>& parts) {
  std::vector<Linear::Part> list;
  for (const auto& [weight, out, bias] : parts) list.push_back({*weight, view(out), bias});
  const auto how = finish == "add"              ? Linear::Finish::kAdd
                   : finish == "silu_mul"       ? Linear::Finish::kSiluMul
                   : finish == "gelu_mul"       ? Linear::Finish::kGeluMul
                   : finish == "gelu_exact_mul" ? Linear::Finish::kGeluExactMul
                                                : Linear::Finish::kStore;
  plan.add(std::make_unique<Linear>(rows_of(logits), view(in), act, how, std::move(list)), true);
}

using Matrices = std::vector<Packed*>;

void add_experts(Plan& plan, bool logits, Where in, int act, Where scores, int used, bool norm_topk_prob,
                 const Matrices& gate, const Matrices& up, const Matrices& down, Where out) {
  if (gate.empty() || gate.size() != up.size() || gate.size() != down.size())
    throw std::invalid_argument("each expert has three matrices");
  std::vector<Expert> experts;
  for (size_t i = 0; i < gate.size(); i++) experts.push_back({*gate[i], *up[i], *down[i]});
  plan.add(std::make_unique<Experts>(rows_of(logits), view(in), act, view(scores), used, norm_topk_prob,
                                     std::move(experts), view(out)), true);
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Kernels, packed weights and the plan executor. Not for direct use: see cutaway.compute.backends.cpu.";
  nb::set_leak_warnings(false);  // a daemon thread at work while Python ends keeps what it uses
  m.def("tiers", &available_kernels, "Instruction-set tiers of this machine, best first, comma-separated.");

  nb::class_<Pool>(m, "Pool").def(nb::init<int>(), "threads"_a).def_prop_ro("threads", &Pool::most);

  nb::class_<Packed>(m, "Packed")
      .def_ro("rows", &Packed::rows)
      .def_ro("cols", &Packed::cols)
      .def_prop_ro("is_float", [](const Packed& p) { return is_float(p.format); })
      .def("decode", &decode, "first"_a, "last"_a, "These rows as floats, exactly: (last - first, cols).");

  nb::class_<Arena>(m, "Arena")
      .def(nb::init<size_t, std::optional<int>>(), "bytes"_a, "file"_a = nb::none(),
           "file: a descriptor of a file of so many bytes, which becomes another one of its own.")
      .def("pack", &Arena::add, "pool"_a, "format"_a, "source"_a, "rows"_a, "cols"_a)
      .def("reserve", &Arena::reserve, "format"_a, "rows"_a, "cols"_a)
      .def("fill", &Arena::fill, "pool"_a, "packed"_a, "source"_a, "first"_a);
  m.def("packed_bytes", [](const std::string& format, int rows, int cols) {
    return (packed_bytes(format_of(format), rows, cols) + 63) / 64 * 64;
  });

  m.attr("KV_BLOCK") = kKvBlock;
  m.def("kv_block_bytes", [](int kv_heads, int head_dim, const std::string& kv) {
    return key_bytes(kv_heads, head_dim, is_codes(kv)) + value_bytes(kv_heads, head_dim, is_codes(kv));
  }, "kv_heads"_a, "head_dim"_a, "kv"_a = "f16", "Of one layer's keys and values, of KV_BLOCK tokens.");

  nb::class_<Plan>(m, "Plan")
      .def("__init__",
           [](Plan* self, std::shared_ptr<Pool> pool, const std::string& tier, int kv_blocks, int context,
              const std::string& prefetch, const std::string& kv) {
             new (self) Plan(std::move(pool), choose_kernels(tier.c_str()), kv_blocks, prefetch, is_codes(kv));
             self->context = context;
           }, "pool"_a, "tier"_a, "kv_blocks"_a, "context"_a, "prefetch"_a = "", "kv"_a = "f16")
      .def_rw("room", &Plan::room, "See plan.h; to be set before ops are added.")
      .def("beside", [](const Plan& p) { return new Plan(&p); }, nb::rv_policy::take_ownership,
           "An empty plan on the same threads, tier, keys and values.")
      .def_prop_ro("prefetch", [](const Plan& p) { return p.prefetch.describe(); })
      .def_prop_ro("tier", [](const Plan& p) { return p.kernels->name; })
      .def_prop_ro("held_windows", [](Plan& p) { return p.kv(1).held(); })
      .def("buffer", &Plan::add_buffer, "width"_a, "quantised"_a)
      .def("embed", [](Plan& p, const Packed& table, Where out) {
        p.vocab = table.rows;
        p.add(std::make_unique<Embed>(table, view(out), Embed::By::kToken));
      })
      .def("embed_positions", [](Plan& p, const Packed& table, Where out) {
        if (table.rows < p.context) throw std::invalid_argument("fewer positions than the context");
        p.add(std::make_unique<Embed>(table, view(out), Embed::By::kPosition));
      })
      .def("embed_first", [](Plan& p, const Packed& table, Where out) {
        p.add(std::make_unique<Embed>(table, view(out), Embed::By::kFirst));
      })
      .def("gather", [](Plan& p, Where in, Where out, int width) {
        p.add(std::make_unique<Gather>(view(in), view(out), width));
      })
      .def("normalise", [](Plan& p, bool logits, Where in, int width, Floats weight, Floats bias, float eps,
                           int group, Where out, int act) {
        Norm norm{floats(weight), floats(bias), eps, group};
        p.add(std::make_unique<Normalise>(rows_of(logits), view(in), width, std::move(norm), view(out), act));
      })
      .def("map", [](Plan& p, bool logits, const std::string& kind, Where a, Where b, float number, int width,
                     Where out) {
        p.add(std::make_unique<Elementwise>(rows_of(logits), map_of(kind), view(a), view(b), number, width, view(out)));
      })
      .def("linear", &add_linear)
      .def("experts", &add_experts)
      .def("attend", [](Plan& p, Where q, Where k, Where v, Where out, int heads, int kv_heads, int head_dim,
                        std::vector<double> frequencies, bool rotate_half, float attention_factor, float scale,
                        float softcap, int window, int reach) {
        const AttendShape shape{heads, kv_heads, head_dim, scale, softcap, window, reach};
        Rotation rotation{std::move(frequencies), rotate_half, attention_factor};
        p.add(std::make_unique<Attend>(p, view(q), view(k), view(v), view(out), shape, std::move(rotation)));
      }, "q"_a, "k"_a, "v"_a, "out"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "frequencies"_a,
         "rotate_half"_a, "attention_factor"_a, "scale"_a, "softcap"_a, "window"_a, "reach"_a)
      .def("rotate", [](Plan& p, Where in, Where out, int heads, int head_dim, std::vector<double> frequencies,
                        bool rotate_half, float attention_factor) {
        Rotation rotation{std::move(frequencies), rotate_half, attention_factor};
        p.add(std::make_unique<Rotate>(p, view(in), view(out), heads, head_dim, std::move(rotation)));
      }, "x"_a, "out"_a, "heads"_a, "head_dim"_a, "frequencies"_a, "rotate_half"_a, "attention_factor"_a)
      .def("read", &read_buffer, "buffer"_a, "rows"_a, "width"_a,
           "What the last run left in a buffer that nothing has written over since: (rows, width).")
      .def("write", &write_buffer, "buffer"_a, "rows"_a, "numbers"_a,
           "Write over rows of numbers between two pieces of a run.")
      .def_prop_ro("length", &Plan::length, "How many ops there are.")
      .def("output", [](Plan& p, Where out) { p.output = view(out); })
      .def("given", [](Plan& p, Where in) { p.input = view(in); })
      .def("run_on", &run_on, "numbers"_a)
      .def("copy_blocks", &copy_blocks, "sources"_a, "targets"_a)
      .def("block_memory", &block_memory, "block"_a, "windows"_a)
      .def("copy_windows", &copy_windows, "sources"_a, "targets"_a)
      .def("run", &run, "tokens"_a, "positions"_a, "sequences"_a, "block_tables"_a, "logit_rows"_a,
           "limits"_a = nb::none(), "blind"_a = nb::none(), "first"_a = 0, "last"_a = nb::none(),
           "Logits; with first and last, those ops alone, of a run that is made piece by piece.");

  bind_sampler(m);
  bind_measure(m);
  bind_quantise(m);
}
