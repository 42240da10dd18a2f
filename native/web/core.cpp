// The core without Python: one model, built from the calls that Python recorded (backends/cpu/recorded.py), over one
// text, and draws from its logits. Who calls it keeps the text and the loop.
#include <algorithm>
#include <memory>
#include <numeric>

#include "../arena.h"
#include "../experts.h"
#include "../ops.h"
#include "../sampler.h"
#include "../sampler_math.h"
#include "numbers.h"

using namespace cutaway;

namespace {

struct Model {
  std::unique_ptr<Arena> arena;
  std::vector<Packed> matrices;
  std::shared_ptr<Pool> pool;
  std::vector<std::unique_ptr<Plan>> plans;  // the model's; beside it one whose tensors can be read, and the head
  std::vector<int32_t> table;  // the text's KV blocks, in order
};

Model model;
Writer result;

View view(Reader& r) {
  r.expect(2);
  const int buffer = r.integer();
  return {buffer, r.integer()};
}
Places places(Reader& r) {
  r.expect(2);
  const View floats = view(r);
  return {floats, r.integer()};
}
Rows rows(Reader& r) { return r.boolean() ? Rows::kLogits : Rows::kAll; }
const Packed& matrix(Reader& r) { return model.matrices.at((size_t)r.integer()); }

Norm norm(Reader& r) {
  r.expect(4);
  auto weight = r.floats(), bias = r.floats();
  const float eps = (float)r.number();
  return {std::move(weight), std::move(bias), eps, r.integer()};
}
Rotation rotation(Reader& r) {
  r.expect(6);
  auto frequencies = r.doubles();
  const bool half = r.boolean();
  const float factor = (float)r.number();
  const double growth = r.number();
  const int period = r.integer();
  return {std::move(frequencies), half, factor, growth, period, r.integer()};
}
AttendShape attend_shape(Reader& r) {
  r.expect(12);
  AttendShape s{};
  s.heads = r.integer(), s.kv_heads = r.integer(), s.head_dim = r.integer();
  s.scale = (float)r.number(), s.softcap = (float)r.number();
  s.window = r.integer(), s.reach = r.integer(), s.chunked = r.boolean();
  s.layer = r.integer(), s.reads = r.integer(), s.value_first = r.integer(), s.value_dim = r.integer();
  return s;
}

void embed(Plan& p, Reader& r) {
  const Packed& table = matrix(r);
  p.add(std::make_unique<Embed>(p, table, view(r), Embed::By::kToken));
}
void embed_positions(Plan& p, Reader& r) {
  const Packed& table = matrix(r);
  p.add(std::make_unique<Embed>(p, table, view(r), Embed::By::kPosition));
}
void gather(Plan& p, Reader& r) {
  const View in = view(r), out = view(r);
  p.add(std::make_unique<Gather>(in, out, r.integer()));
}
void reorder(Plan& p, Reader& r) {
  const Rows which = rows(r);
  const View in = view(r);
  auto order = r.integers();
  p.add(std::make_unique<Reorder>(which, in, std::move(order), view(r)));
}
void normalise(Plan& p, Reader& r) {
  const Rows which = rows(r);
  const View in = view(r);
  const int width = r.integer();
  Norm by{{}, {}, 0, 0};
  for (size_t given = r.count(); given; given--) by = norm(r);
  p.add(std::make_unique<Normalise>(which, in, width, std::move(by), places(r)));
}
void map(Plan& p, Reader& r) {
  const Rows which = rows(r);
  const Map kind = map_of(r.string());
  const View a = view(r), b = view(r);
  const float number = (float)r.number();
  const int width = r.integer();
  const View out = view(r);
  p.add(std::make_unique<Elementwise>(Elementwise::Args{which, kind, a, b, number, width, out, r.boolean()}));
}
void linear(Plan& p, Reader& r) {
  const Rows which = rows(r);
  const Places in = places(r);
  auto parts = r.list([&] {
    r.expect(4);
    const Packed& weight = matrix(r);
    const View out = view(r);
    auto bias = r.floats();
    return Linear::Part{weight, out, std::move(bias), r.integer()};
  });
  Linear::Finish finish{r.boolean()};
  if (const std::string gate = r.string(); !gate.empty()) finish.gate = map_of(gate);
  p.add(std::make_unique<Linear>(which, in, finish, std::move(parts)), true);
}
void attend(Plan& p, Reader& r) {
  const View q = view(r), k = view(r), v = view(r), out = view(r);
  const AttendShape shape = attend_shape(r);
  auto turn = rotation(r);
  auto sinks = r.floats();
  p.add(std::make_unique<Attend>(p, Attend::Views{q, k, v, out}, shape, std::move(turn), std::move(sinks), r.floats()));
}
void rotate(Plan& p, Reader& r) {
  const View in = view(r), out = view(r);
  const int heads = r.integer(), head_dim = r.integer();
  p.add(std::make_unique<Rotate>(p, in, out, heads, head_dim, rotation(r)));
}
void conv(Plan& p, Reader& r) {
  const View in = view(r), out = view(r);
  auto weight = r.floats(), bias = r.floats();
  const int width = r.integer();
  p.add(std::make_unique<Conv>(p, in, out, ConvWeights{std::move(weight), std::move(bias), width, r.integer()}));
}
void delta_net(Plan& p, Reader& r) {
  const View qkv = view(r), a = view(r), b = view(r), out = view(r);
  r.expect(5);
  DeltaShape shape{};
  shape.k_heads = r.integer(), shape.heads = r.integer(), shape.keys = r.integer(), shape.values = r.integer();
  shape.grouped = r.boolean();
  auto scale = r.floats();
  p.add(std::make_unique<DeltaNet>(p, DeltaNet::Views{qkv, a, b, out}, shape, std::move(scale), r.floats()));
}
void mamba2(Plan& p, Reader& r) {
  const View vkq = view(r), dt = view(r), out = view(r);
  r.expect(4);
  Mamba::Shape shape{};
  shape.groups = r.integer(), shape.heads = r.integer(), shape.keys = r.integer(), shape.values = r.integer();
  Mamba::Weights weights{};
  weights.a = r.floats(), weights.dt = r.floats(), weights.skip = r.floats();
  p.add(std::make_unique<Mamba>(p, Mamba::Views{vkq, dt, out}, shape, std::move(weights)));
}
void join(Plan& p, Reader& r) {
  const Rows which = rows(r);
  const auto part = [&] {
    r.expect(2);
    const View from = view(r);
    return Join::Part{from, r.integer()};
  };
  const Join::Part a = part(), b = part();
  const int groups = r.integer();
  p.add(std::make_unique<Join>(which, a, b, groups, view(r)));
}
Mixture mixture(Reader& r) {
  r.expect(12);
  Mixture m{};
  m.used = r.integer(), m.gating = gating_of(r.string()), m.normed = r.boolean(), m.scale = (float)r.number();
  m.groups = r.integer(), m.used_groups = r.integer(), m.best_of_group = r.integer();
  m.activation = map_of(r.string()), m.limit = (float)r.number();
  m.weighs_input = r.boolean(), m.tolerance = r.number(), m.bias = r.floats();
  return m;
}
// An expert's matrices in the order of Experts: its gate, if it has one, up, down; each with its bias, if any.
Expert expert(Reader& r) {
  r.expect(3);
  const auto biased = [&] {
    r.expect(2);
    const Packed& weight = matrix(r);
    return Biased{weight, r.floats()};
  };
  std::optional<Biased> gate;
  for (size_t given = r.count(); given; given--) gate = biased();
  Biased up = biased();
  return {std::move(gate), std::move(up), biased()};
}
void experts(Plan& p, Reader& r) {
  const Rows which = rows(r);
  const Places in = places(r);
  const View scores = view(r);
  Mixture by = mixture(r);
  auto all = r.list([&] { return expert(r); });
  const View out = view(r);
  p.add(std::make_unique<Experts>(Experts::Args{which, in, scores, std::move(by), out, view(r)}, std::move(all)), true);
}
void buffer(Plan& p, Reader& r) {
  const int width = r.integer();
  p.add_buffer(width, r.boolean());
}
void given(Plan& p, Reader& r) { p.set_input(view(r)); }
void output(Plan& p, Reader& r) { p.set_output(view(r)); }

// In the names and with the arguments of module.cpp.
constexpr struct { const char* name; void (*add)(Plan&, Reader&); } kCalls[] = {
    {"buffer", buffer}, {"output", output}, {"embed", embed}, {"embed_positions", embed_positions}, {"gather", gather},
    {"reorder", reorder}, {"normalise", normalise}, {"map", map}, {"linear", linear}, {"attend", attend},
    {"rotate", rotate}, {"conv", conv}, {"delta_net", delta_net}, {"mamba2", mamba2}, {"join", join}, {"experts", experts},
    {"given", given},
};

void call(Plan& plan, Reader& r) {
  r.count();  // the name and the arguments, which each op reads
  const std::string name = r.string();
  for (const auto& each : kCalls)
    if (name == each.name) return each.add(plan, r);
  throw std::invalid_argument("the core has no op '" + name + "'");
}

// Whether it is greedy, its stages (name, numbers of its rule, bias (id, by), ids), the prompt's ids where a stage looks at the
// text, else none.
Chain read_chain(Reader& r) {
  Chain made{};
  made.greedy = r.boolean();
  for (size_t left = r.count(); left; left--) {
    r.expect(4);
    Stage stage{stage_kind(r.string().c_str()), {}, {}, {}};
    stage.numbers = r.doubles();
    if (stage.kind == stage_kind("min_p")) stage.numbers.at(0) = exact_log(stage.numbers[0]);  // as its kernel takes it
    stage.bias = r.list([&] {
      r.expect(2);
      const int64_t id = (int64_t)r.number();
      return std::pair{id, (float)r.number()};
    });
    stage.ids = r.ids();
    made.stages.push_back(std::move(stage));
  }
  made.history = r.boolean();
  made.prompt = r.ids();
  made.prompt_ids = made.prompt;
  std::sort(made.prompt_ids.begin(), made.prompt_ids.end());
  made.prompt_ids.erase(std::unique(made.prompt_ids.begin(), made.prompt_ids.end()), made.prompt_ids.end());
  return made;
}

void write_observed(const Observation& o, const Drawn& drawn) {
  const auto ids = [](const std::vector<uint32_t>& list) { result.list(list); };
  for (double number : {o.maximum, o.log_sum, o.entropy, (double)o.rank, drawn.logprob}) result.put(number);
  result.optional(o.final_rank), result.optional(o.final_logprob), result.put(o.final_log_sum);
  result.list(o.candidates, [](const Candidate& c) {
    result.put(c.id), result.put(c.logit), result.put((double)c.rank), result.put(c.delta);
    result.optional(c.removed_by), result.optional(c.final_logprob), result.optional(c.luck);
  });
  result.list(o.stages, [&](const StageReport& s) {
    result.put((double)s.survivors), result.put(s.removed_mass), result.put(s.log_sum), result.optional(s.min_kept_logit);
    ids(s.top_removed);
  });
  result.list(o.logit_histogram);
}

}  // namespace

#define EXPORT(name) extern "C" __attribute__((export_name(#name))) auto name

// Memory for what is handed over; to be given back.
EXPORT(allocate)(size_t bytes) -> void* { return malloc(bytes); }
EXPORT(release)(void* at) -> void { free(at); }

// Memory of the packed weights, to be filled as Python packed them.
EXPORT(weights)(size_t bytes) -> uint8_t* {
  model.arena = std::make_unique<Arena>(bytes, std::nullopt);
  return model.arena->data();
}

// context, threads, matrices (format, rows, columns, factor), each plan's calls. All threads but one are to call `work` then.
EXPORT(build)(const double* numbers, size_t count) -> void {
  Reader r(numbers, count);
  const int context = r.integer(), threads = r.integer(), blocks = (context + kKvBlock - 1) / kKvBlock;
  model.matrices = r.list([&] {
    r.expect(4);
    const std::string format = r.string();
    const int rows = r.integer(), cols = r.integer();
    return model.arena->reserve(format, rows, cols, (float)r.number());
  });
  model.table.resize((size_t)blocks);
  std::iota(model.table.begin(), model.table.end(), 0);
  model.plans.clear();
  model.pool = std::make_shared<Pool>(threads);
  const Plan::Options options{.kv_blocks = blocks, .context = context, .prefetch = "none"};
  for (size_t plans = r.count(); plans; plans--) {
    model.plans.push_back(model.plans.empty() ? std::make_unique<Plan>(model.pool, choose_kernels(""), options)
                                              : std::make_unique<Plan>(model.plans[0].get()));
    for (size_t left = r.count(); left; left--) call(*model.plans.back(), r);
  }
}

// What thread `id`, from 1 on, does; it does not return.
EXPORT(work)(int id) -> void { model.pool->work(id, 0); }

EXPORT(vocabulary)() -> int { return model.plans[0]->vocab(); }

// The text's tokens from position `first` on, by one of the plans. Logits of the last one, (vocabulary), until the next run.
EXPORT(run)(int plan, const int32_t* tokens, int count, int first) -> const float* {
  std::vector<int32_t> positions((size_t)count), sequence((size_t)count);
  for (int i = 0; i < count; i++) positions[i] = first + i;
  const int32_t last = count - 1;
  const int blocks = std::min((first + count + kKvBlock - 1) / kKvBlock, (int)model.table.size());
  return model.plans.at((size_t)plan)->run({tokens, positions.data(), sequence.data(), model.table.data(), &last, count, 1, blocks, 1});
}

// The ops of a plan that takes rows of numbers. Logits of each, until the next run.
EXPORT(run_on)(int plan, const float* numbers, int rows) -> const float* {
  return model.plans.at((size_t)plan)->run_on(numbers, rows);
}

// What a plan's last run left of its first row in a buffer.
EXPORT(read)(int plan, int buffer, int width, float* out) -> void { model.plans.at((size_t)plan)->read({buffer, 0}, 1, width, out); }

// Rows of a matrix as floats.
EXPORT(decode)(int matrix, int first, int last, float* out) -> void {
  const Packed& packed = model.matrices.at((size_t)matrix);
  if (first < 0 || first > last || last > packed.rows) throw std::out_of_range("rows");
  for (int row = first; row < last; row++, out += packed.cols) packed.decode_row(row, out);
}

// A layer's keys (kv_heads, head_dim, tokens) or values (kv_heads, tokens, padded head_dim) in a KV block of the text, as
// halves; window: of the layer, 0 where it sees all.
EXPORT(stored)(int layer, int window, int block, bool values) -> const uint8_t* {
  Plan& plan = *model.plans[0];
  const KvPlace place = plan.kv_of(layer);
  const uint8_t* at = plan.kv(window).memory(block, false);
  if (!at) throw std::out_of_range("the text has no such KV block");
  return at + (values ? place.values : place.keys);
}

// The recurrent state after the last token that was run in a KV block, as floats.
EXPORT(state)(int block) -> const uint8_t* {
  const uint8_t* at = model.plans[0]->state_memory(block, false);
  if (!at) throw std::out_of_range("the text has no such state");
  return at;
}

// The chain, see there; seed and place (upper, lower halves), the ids written so far, how many candidates to note, ids to
// track, the forced id (a list of one, or none). The result: status; ids chosen and drawn; how many survived; the hash of
// the logits; then what was observed, see write_observed; `result_length` says how many numbers.
EXPORT(draw)(const float* logits, const double* numbers, size_t count) -> const double* {
  Reader r(numbers, count);
  const Chain chain = read_chain(r);
  const uint64_t seed = r.uint64(), place = r.uint64();
  Row row{&chain, seed, place, {}, {}, {}, {}};
  row.output = r.ids();
  row.observe = Observe{r.count(), {}, true, false};
  for (int64_t id : r.ids()) row.observe->track.push_back((uint32_t)id);
  for (int64_t id : r.ids()) row.forced = (uint32_t)id;
  const Drawn drawn = sample_row(*model.plans[0]->kernels, logits, (size_t)model.plans[0]->vocab(), row);
  result.clear();
  result.put((double)drawn.status), result.put(drawn.token_id), result.put(drawn.sampled_id);
  result.put((double)drawn.survivors), result.uint64(drawn.logits_hash);
  if (drawn.observed) write_observed(*drawn.observed, drawn);
  return result.numbers().data();
}
EXPORT(result_length)() -> size_t { return result.numbers().size(); }
