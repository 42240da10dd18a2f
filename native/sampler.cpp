#include "sampler.h"

#include "sampler_observe.h"

namespace cutaway {
namespace {

thread_local Scratch scratch;

bool is_finite(const RowStats& stats) { return stats.magnitude < 0x7F800000u; }

// Applies the stages to a whole row; kDrawn if a token can be drawn from what is left.
Drawn::Status run_stages(Candidates& c, const Row& row, Observer* observer) {
  for (const Stage& stage : row.chain->stages) {
    if (observer) observer->begin_stage(stage, c);
    c.apply(stage, row, observer ? observer->report() : nullptr);
    if (c.size() == 0) return Drawn::Status::kNothingAllowed;
    if (!c.is_in_range()) return Drawn::Status::kOutOfRange;
    if (observer) observer->end_stage(c);
  }
  return Drawn::Status::kDrawn;
}

}  // namespace

double log_sum(const Kernels& k, const float* logits, size_t vocab) {
  const float top = k.max_of(logits, vocab);
  return top + exact_log(k.exp_sum(logits, vocab, top));
}

Drawn sample_row(const Kernels& k, const float* logits, size_t vocab, const Row& row, bool logprob) {
  Drawn draw{};
  RowStats stats;
  k.row_stats(logits, vocab, &stats);
  draw.logits_hash = stats.hash;
  if (!is_finite(stats)) return draw.status = Drawn::Status::kNotFinite, draw;
  Candidates c(k, scratch, logits, vocab, stats);
  std::optional<Observer> observer;
  if (row.observe) observer.emplace(k, logits, row, c);
  const double log_sum = logprob ? c.log_sum() : 0;
  draw.status = run_stages(c, row, observer ? &*observer : nullptr);
  if (draw.status != Drawn::Status::kDrawn) return draw;
  draw.sampled_id = c.id(c.draw(row));
  draw.token_id = row.forced.value_or(draw.sampled_id);
  draw.survivors = c.size();
  draw.logprob = logits[draw.token_id] - log_sum;
  if (observer) draw.observed = observer->finish(draw.token_id, c);
  return draw;
}

Drawn::Status read_distribution(const Kernels& k, const float* logits, size_t vocab, const Row& row, float* chances,
                                double* entropy) {
  RowStats stats;
  k.row_stats(logits, vocab, &stats);
  if (!is_finite(stats)) return Drawn::Status::kNotFinite;
  Candidates c(k, scratch, logits, vocab, stats);
  const Drawn::Status status = run_stages(c, row, nullptr);
  if (status != Drawn::Status::kDrawn) return status;
  *entropy = c.entropy();
  if (!chances) return status;
  const double mass = c.mass();
  const std::vector<double> weights = c.weights();
  for (size_t i = 0; i < weights.size(); i++) chances[c.id(i)] = (float)(weights[i] / mass);
  return status;
}

ReadRow read_row(const Kernels& k, const float* logits, size_t vocab, int32_t next, size_t top) {
  ReadRow read{};
  RowStats stats;
  k.row_stats(logits, vocab, &stats);
  read.finite = is_finite(stats);
  if (!read.finite) return read;
  Candidates c(k, scratch, logits, vocab, stats);
  read.top = c.likeliest(top);
  if (next < 0) return read;
  read.logprob = c.logprob((size_t)next);
  read.rank = k.rank_of(logits, vocab, (size_t)next);
  return read;
}

}  // namespace cutaway
