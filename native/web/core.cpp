// The core without Python: one model, built from the calls that Python wrote (features/page/plan.py), over one text, and
// draws from its logits. Who calls it keeps the text and the loop.
#include <algorithm>
#include <memory>
#include <numeric>

#include "../arena.h"
#include "../calls.h"
#include "../sampler.h"
#include "../sampler_math.h"

using namespace cutaway;

namespace {

struct Model {
  std::unique_ptr<Arena> arena;
  Named tables;
  std::shared_ptr<Pool> pool;
  std::vector<std::unique_ptr<Plan>> plans;  // the model's; beside it one whose tensors can be read, and the head
  std::vector<int32_t> table;  // the text's KV blocks, in order
  std::vector<Angles> rotations;  // whose cosines a GPU reads
};

Model model;
Writer result;

// Whether it is greedy, its stages (name, numbers of its rule, bias (id, by), ids), the prompt's ids where a stage looks at the
// text, else none.
Chain read_chain(Reader& r) {
  Chain chain{};
  chain.greedy = r.boolean();
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
    chain.stages.push_back(std::move(stage));
  }
  chain.history = r.boolean();
  chain.prompt = r.ids();
  chain.prompt_ids = chain.prompt;
  std::sort(chain.prompt_ids.begin(), chain.prompt_ids.end());
  chain.prompt_ids.erase(std::unique(chain.prompt_ids.begin(), chain.prompt_ids.end()), chain.prompt_ids.end());
  return chain;
}

void write_observed(const Observation& o, const Drawn& draw) {
  const auto ids = [](const std::vector<uint32_t>& list) { result.list(list); };
  for (double number : {o.maximum, o.log_sum, o.entropy, (double)o.rank, draw.logprob}) result.put(number);
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
  model.tables.matrices = r.list([&] {
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
    add_calls(*model.plans.back(), r, model.tables);
  }
}

// What thread `id`, from 1 on, does; it does not return.
EXPORT(work)(int id) -> void { model.pool->work(id, 0); }

// A rotation (frequencies, whether it rotates halves, factor, growth, period, offset, whether it is smooth); returns its number.
EXPORT(rotation)(const double* numbers, size_t count) -> int {
  Reader r(numbers, count);
  r.expect(7);
  Rotation rotation{r.doubles(), r.boolean(), (float)r.number(), r.number(), r.integer(), r.integer(), r.boolean()};
  model.rotations.emplace_back(std::move(rotation));
  return (int)model.rotations.size() - 1;
}

// The cosine and sine of each pair at positions first … first + rows - 1: (rows, 2 * pairs). Returns how many floats.
EXPORT(angles)(int rotation, int first, int rows, float* out) -> size_t {
  Angles& angles = model.rotations.at((size_t)rotation);
  const size_t floats = (size_t)rows * 2 * angles.rotation().frequencies.size();
  angles.reach(first + rows - 1);
  std::copy_n(angles.row(first), floats, out);
  return floats;
}

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
  const Packed& packed = model.tables.matrices.at((size_t)matrix);
  if (first < 0 || first > last || last > packed.rows) throw std::out_of_range("rows");
  for (int row = first; row < last; row++, out += packed.cols) packed.decode_row(row, out);
}

// A layer's keys or values in a KV block of the text: (kv_heads, tokens, head_dim); window: of the layer, 0 where it sees all.
EXPORT(stored)(int layer, int window, int block, bool values, int kv_heads, int head_dim, float* out) -> void {
  Plan& plan = *model.plans[0];
  const KvPlace place = plan.kv_of(layer);
  const uint8_t* at = plan.kv(window).memory(block, false);
  if (!at) throw std::out_of_range("the text has no such KV block");
  const KvFormats f = plan.kv_formats();
  read_kv(values ? f.values : f.keys, values, at + (values ? place.values : place.keys), kv_heads, head_dim, out);
}

// Activations as a quantised matrix reads them, in their place.
EXPORT(round_activations)(float* x, int count) -> void { cutaway::round_activations(*model.plans[0]->kernels, x, count, x); }

// Whether the model's layers keep a state, so that a text can only be continued from its last token.
EXPORT(has_states)() -> bool { return !model.plans[0]->states().is_empty(); }

// The recurrent state after the last token that was run in a KV block, as floats.
EXPORT(state)(int block) -> const uint8_t* {
  const uint8_t* at = model.plans[0]->state_memory(block, false);
  if (!at) throw std::out_of_range("the text has no such state");
  return at;
}

// The chain, see there; seed and place (upper, lower halves), the ids written so far, how many candidates to note, ids to
// track, the forced id (a list of one, or none). The result: status; ids chosen and drawn; how many survived; the hash of
// the logits; then what was observed, see write_observed; `result_length` says how many numbers.
EXPORT(draw)(const float* logits, size_t vocabulary, const double* numbers, size_t count) -> const double* {
  Reader r(numbers, count);
  const Chain chain = read_chain(r);
  const uint64_t seed = r.uint64(), place = r.uint64();
  Row row{&chain, seed, place, {}, {}, {}, {}};
  row.output = r.ids();
  row.observe = Observe{(size_t)r.integer(), {}, true, false};
  for (int64_t id : r.ids()) row.observe->track.push_back((uint32_t)id);
  for (int64_t id : r.ids()) row.forced = (uint32_t)id;
  const Drawn draw = sample_row(*choose_kernels(""), logits, vocabulary, row);
  result.clear();
  result.put((double)draw.status), result.put(draw.token_id), result.put(draw.sampled_id);
  result.put((double)draw.survivors), result.uint64(draw.logits_hash);
  if (draw.observed) write_observed(*draw.observed, draw);
  return result.numbers().data();
}
EXPORT(result_length)() -> size_t { return result.numbers().size(); }
