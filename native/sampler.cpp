#include "sampler.h"

#include "sampler_observe.h"

namespace cutaway {
namespace {

thread_local Scratch scratch;

bool is_finite(const RowStats& stats) { return stats.magnitude < 0x7F800000u; }

}  // namespace

double log_sum(const Kernels& k, const float* logits, size_t vocab) {
  const float top = k.max_of(logits, vocab);
  return top + exact_log(k.exp_sum(logits, vocab, top));
}

Drawn sample_row(const Kernels& k, const float* logits, size_t vocab, const Row& row, bool logprob) {
  Drawn draw{};
  const auto failed = [&](Drawn::Status status) { return draw.status = status, draw; };
  RowStats stats;
  k.row_stats(logits, vocab, &stats);
  draw.logits_hash = stats.hash;
  if (!is_finite(stats)) return failed(Drawn::Status::kNotFinite);
  Candidates c(k, scratch, logits, vocab, stats);
  std::optional<Observer> observer;
  if (row.observe) observer.emplace(k, logits, row, c);
  const double log_sum = logprob ? c.log_sum() : 0;
  for (const Stage& stage : row.chain->stages) {
    if (observer) observer->begin_stage(stage, c);
    c.apply(stage, row, observer ? observer->report() : nullptr);
    if (c.size() == 0) return failed(Drawn::Status::kNothingAllowed);
    if (!c.is_in_range()) return failed(Drawn::Status::kOutOfRange);
    if (observer) observer->end_stage(c);
  }
  draw.sampled_id = c.id(c.draw(row));
  draw.token_id = row.forced.value_or(draw.sampled_id);
  draw.survivors = c.size();
  draw.logprob = logits[draw.token_id] - log_sum;
  if (observer) draw.observed = observer->finish(draw.token_id, c);
  return draw;
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
