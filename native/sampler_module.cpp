// The Python face of the sampler: rows of logits and chains in, tokens out, the GIL released, the rows
// shared among the threads of a pool where there is one.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

#include "gil.h"
#include "plain_arithmetic.h"
#include "pool.h"
#include "sampler.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace cutaway;

namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Chances = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<int64_t> ids_of(nb::sequence list) {
  std::vector<int64_t> ids;
  for (nb::handle id : list) ids.push_back(nb::cast<int64_t>(id));
  return ids;
}

void add_stage(Chain& chain, const std::string& name, nb::sequence numbers, nb::dict bias, nb::sequence ids) {
  Stage stage{stage_kind(name.c_str()), {}, {}, ids_of(ids)};
  for (nb::handle number : numbers) stage.numbers.push_back(nb::cast<double>(number));
  for (auto [id, by] : bias) stage.bias.emplace_back(nb::cast<int64_t>(id), (float)nb::cast<double>(by));
  chain.stages.push_back(std::move(stage));
}

// Give a chain the prompt, for the stages that look at the text so far.
void set_prompt(Chain& chain, nb::sequence prompt) {
  chain.history = true;
  chain.prompt = ids_of(prompt);
  chain.prompt_ids = chain.prompt;
  std::sort(chain.prompt_ids.begin(), chain.prompt_ids.end());
  chain.prompt_ids.erase(std::unique(chain.prompt_ids.begin(), chain.prompt_ids.end()), chain.prompt_ids.end());
}

uint32_t id_of(nb::handle item, size_t vocab) {
  const int64_t id = nb::cast<int64_t>(item);
  if (id < 0 || id >= (int64_t)vocab) throw std::invalid_argument("an id is outside the vocabulary");
  return (uint32_t)id;
}

Observe observe_of(nb::handle o, size_t vocab) {
  Observe observe{nb::cast<size_t>(o.attr("top")), {}, nb::cast<bool>(o.attr("stages")),
                  nb::cast<bool>(o.attr("after_chain"))};
  for (nb::handle id : o.attr("track")) observe.track.push_back(id_of(id, vocab));
  return observe;
}

std::vector<uint32_t> mask_of(nb::handle item, size_t vocab) {
  const auto bits = nb::cast<nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>(item);
  if (bits.size() != (vocab + 31) / 32) throw std::invalid_argument("a mask has a bit per token, in words of 32");
  return {bits.data(), bits.data() + bits.size()};
}

// Reads a RowDraw of cutaway.sampling, whose fields come in this order.
Row row_of(nb::tuple draw, size_t vocab) {
  constexpr int kCompiled = 0, kHistory = 1, kSeed = 2, kPosition = 3, kObserve = 4, kForced = 5, kMask = 6, kRedraw = 7;
  const Chain& chain = nb::cast<const Chain&>(nb::object(draw[kCompiled]).attr("native"));
  const uint64_t place = nb::cast<uint64_t>(draw[kPosition]) | nb::cast<uint64_t>(draw[kRedraw]) << 32;
  Row row{&chain, nb::cast<uint64_t>(draw[kSeed]), place, {}, {}, {}, {}};
  if (chain.history) row.output = ids_of(nb::cast<nb::sequence>(nb::object(draw[kHistory]).attr("output_token_ids")));
  if (nb::object o = draw[kObserve]; !o.is_none()) row.observe = observe_of(o, vocab);
  if (nb::object id = draw[kForced]; !id.is_none()) row.forced = id_of(id, vocab);
  if (nb::object mask = draw[kMask]; !mask.is_none()) row.mask = mask_of(mask, vocab);
  return row;
}

template <typename Numbers> nb::tuple numbers(const Numbers& from) {
  nb::list to;
  for (uint32_t number : from) to.append(number);
  return nb::tuple(to);
}

nb::tuple likely(const std::vector<Likely>& tokens) {
  nb::list pairs;
  for (const auto& [id, logprob] : tokens) pairs.append(nb::make_tuple(id, logprob));
  return nb::tuple(pairs);
}

// Rows of the tables of sampling/observe.py, which say why they are not tuples: -1 and NaN stand for None.
struct CandidateRow {
  uint32_t id;
  float logit, delta;
  int32_t removed_by;
  double final_logprob, luck;
  uint32_t rank, unused;
};
static_assert(sizeof(CandidateRow) == 40 && sizeof(Likely) == 16);

template <typename Row> nb::bytes bytes_of(const std::vector<Row>& rows) {
  return nb::bytes((const char*)rows.data(), rows.size() * sizeof(Row));
}

nb::bytes candidates_of(const std::vector<Candidate>& candidates) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  std::vector<CandidateRow> rows;
  for (const Candidate& c : candidates)
    rows.push_back({c.id, c.logit, c.delta, c.removed_by ? (int32_t)*c.removed_by : -1, c.final_logprob.value_or(kNone),
                    c.luck.value_or(kNone), (uint32_t)c.rank, 0});
  return bytes_of(rows);
}

nb::object observed_of(const Drawn& draw) {
  if (!draw.observed) return nb::none();
  const Observation& o = *draw.observed;
  nb::list stages;
  for (const StageReport& r : o.stages)
    stages.append(nb::make_tuple(r.survivors, r.removed_mass, numbers(r.top_removed), r.log_sum, r.min_kept_logit));
  return nb::make_tuple(o.maximum, o.log_sum, o.entropy, o.rank, draw.logprob, o.final_rank, o.final_logprob,
                        o.final_log_sum, candidates_of(o.candidates), stages, numbers(o.logit_histogram),
                        bytes_of(o.after_chain));
}

size_t vocab_of(const Logits& logits, size_t rows) {
  const size_t vocab = logits.shape(1);
  if (rows != logits.shape(0)) throw std::invalid_argument("logits and rows differ in number");
  if (vocab == 0 || vocab > 0x7FFFFFFF) throw std::invalid_argument("the vocabulary is out of range");
  return vocab;
}

constexpr size_t kWorthSharing = 1 << 15;  // logits; to wake a thread takes some microseconds

// make(i) for each row. Whoever is free takes the next one: rows cost what their chains cost.
template <typename Make> auto each_row(Pool* pool, size_t rows, Make make) {
  const WithoutGil release;
  const PlainArithmetic plain;
  std::vector<decltype(make(rows))> results(rows);
  std::vector<std::exception_ptr> failures(rows);  // no thread may leave a job before its end
  std::atomic<size_t> next{0};
  const auto attempt = [&](size_t i) {
    try {
      results[i] = make(i);
    } catch (...) {
      failures[i] = std::current_exception();
    }
  };
  const auto work = [&](int) {
    for (size_t i; (i = next.fetch_add(1)) < rows;) attempt(i);
  };
  if (pool && rows > 1) pool->run(work, Pool::Work::kUneven);
  else work(0);
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
  return results;
}

// Where every second thread would have nothing to do, a row is two jobs.
std::vector<Drawn> draw_rows(const Kernels& k, const Logits& logits, const std::vector<Row>& rows, Pool* pool) {
  const size_t vocab = logits.shape(1), n = rows.size();
  const auto at = [&](size_t i) { return logits.data() + i * vocab; };
  const bool plain = std::all_of(rows.begin(), rows.end(), [](const Row& r) { return !r.observe; });
  if (!pool || !plain || 2 * n > (size_t)pool->max_threads() || vocab < kWorthSharing)
    return each_row(pool, n, [&](size_t i) { return sample_row(k, at(i), vocab, rows[i]); });
  std::vector<double> sums(n);
  auto draws = each_row(pool, 2 * n, [&](size_t i) {
    if (i >= n) return sums[i - n] = log_sum(k, at(i - n), vocab), Drawn{};
    return sample_row(k, at(i), vocab, rows[i], false);
  });
  draws.resize(n);
  for (size_t i = 0; i < n; i++)
    if (draws[i].status == Drawn::Status::kDrawn) draws[i].logprob = at(i)[draws[i].token_id] - sums[i];
  return draws;
}

std::vector<Row> rows_of(nb::list draws, size_t vocab) {
  std::vector<Row> rows;
  for (nb::handle draw : draws) rows.push_back(row_of(nb::cast<nb::tuple>(draw), vocab));
  return rows;
}

nb::list sample_rows(Logits logits, nb::list rows, const std::string& tier, Pool* pool) {
  const size_t vocab = vocab_of(logits, rows.size());
  const Kernels& kernels = *choose_kernels(tier.c_str());
  const std::vector<Row> requests = rows_of(rows, vocab);
  nb::list out;
  for (const Drawn& draw : draw_rows(kernels, logits, requests, pool))
    out.append(nb::make_tuple((int)draw.status, draw.token_id, draw.sampled_id, draw.survivors, draw.logprob,
                              draw.logits_hash, observed_of(draw)));
  return out;
}

nb::list read_distributions(Logits logits, nb::list rows, Numbers entropies, std::optional<Chances> chances,
                            const std::string& tier, Pool* pool) {
  const size_t vocab = vocab_of(logits, rows.size()), n = rows.size();
  if (entropies.size() != n) throw std::invalid_argument("entropies and rows differ in number");
  if (chances && (chances->shape(0) != n || chances->shape(1) != vocab))
    throw std::invalid_argument("chances and logits differ in shape");
  const Kernels& kernels = *choose_kernels(tier.c_str());
  const std::vector<Row> requests = rows_of(rows, vocab);
  const auto statuses = each_row(pool, n, [&](size_t i) {
    float* const row = chances ? chances->data() + i * vocab : nullptr;
    return read_distribution(kernels, logits.data() + i * vocab, vocab, requests[i], row, entropies.data() + i);
  });
  nb::list out;
  for (Drawn::Status status : statuses) out.append((int)status);
  return out;
}

nb::list read_rows(Logits logits, Ids next, size_t top, const std::string& tier, Pool* pool) {
  const size_t vocab = vocab_of(logits, next.size());
  for (size_t i = 0; i < next.size(); i++)
    if (next.data()[i] >= (int64_t)vocab) throw std::invalid_argument("a next id is outside the vocabulary");
  const Kernels& kernels = *choose_kernels(tier.c_str());
  const auto read = each_row(pool, next.size(), [&](size_t i) {
    return read_row(kernels, logits.data() + i * vocab, vocab, next.data()[i], top);
  });
  nb::list out;
  for (const ReadRow& r : read) out.append(nb::make_tuple(r.finite, r.logprob, r.rank, likely(r.top)));
  return out;
}

}  // namespace

void bind_sampler(nb::module_& m) {
  nb::class_<Chain>(m, "Chain")
      .def("__init__", [](Chain* self, bool greedy) { (new (self) Chain())->greedy = greedy; }, "greedy"_a)
      .def("add", &add_stage, "name"_a, "numbers"_a, "bias"_a, "ids"_a)
      .def("set_prompt", &set_prompt, "prompt"_a)
      .def_ro("history", &Chain::history);
  m.def("sample_rows", &sample_rows, "logits"_a, "rows"_a, "tier"_a, "pool"_a = nb::none(),
        "(status, token, sampled token, survivors, logprob, hash of the logits, what is observed) per row; status 0: drawn, "
        "1: not finite, 2: ask the twin, 3: the constraint left no token.");
  m.def("read_distributions", &read_distributions, "logits"_a, "rows"_a, "entropies"_a, "chances"_a, "tier"_a,
        "pool"_a = nb::none(), "Fill entropies and chances, which begin as zeros; the status per row, as of sample_rows.");
  m.def("read_rows", &read_rows, "logits"_a, "next_ids"_a, "top"_a, "tier"_a, "pool"_a = nb::none(),
        "(finite, logprob of the next id, its rank, the likeliest) per row; a next id below 0 is none.");
}
