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
  Drawn drawn{};
  const auto failed = [&](Drawn::Status why) { return drawn.status = why, drawn; };
  RowStats stats;
  k.row_stats(logits, vocab, &stats);
  drawn.logits_hash = stats.hash;
  if (!is_finite(stats)) return failed(Drawn::Status::kNotFinite);
  Candidates c(k, scratch, logits, vocab, stats);
  std::optional<Observer> observer;
  if (row.observe) observer.emplace(k, logits, row, c);
  const double log_sum = logprob ? c.log_sum() : 0;
  for (const Stage& stage : row.chain->stages) {
    if (observer) observer->before_stage(stage, c);
    c.apply(stage, row, observer ? observer->report() : nullptr);
    if (c.size() == 0) return failed(Drawn::Status::kNothingAllowed);
    if (!c.in_range()) return failed(Drawn::Status::kOutOfRange);
    if (observer) observer->after_stage(c);
  }
  drawn.sampled_id = c.id(c.draw(row));
  drawn.token_id = row.forced.value_or(drawn.sampled_id);
  drawn.survivors = c.size();
  drawn.logprob = logits[drawn.token_id] - log_sum;
  if (observer) drawn.observed = observer->finish(drawn.token_id, c);
  return drawn;
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
