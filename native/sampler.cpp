#include "sampler.h"

#include "sampler_candidates.h"

namespace cutaway {
namespace {

thread_local Scratch scratch;

bool is_finite(const RowStats& stats) { return stats.magnitude < 0x7F800000u; }

// 1 for the likeliest; of equals the lowest id comes first.
size_t rank_of(const float* logits, size_t vocab, size_t id) {
  const float own = logits[id];
  uint32_t rank = 1;
  for (size_t i = 0; i < id; i++) rank += logits[i] >= own;
  for (size_t i = id + 1; i < vocab; i++) rank += logits[i] > own;
  return rank;
}

}  // namespace

Drawn sample_row(const Kernels& k, const float* logits, size_t vocab, const Row& row) {
  Drawn drawn{};
  RowStats stats;
  k.row_stats(logits, vocab, &stats);
  drawn.row_hash = stats.hash;
  if (!is_finite(stats)) return drawn.status = Drawn::Status::kNotFinite, drawn;
  Candidates c(k, scratch, logits, vocab, stats);
  const double log_sum = c.log_sum();
  drawn.model = c.likeliest(row.top);
  for (const Stage& stage : row.chain->stages) {
    if (row.ledger) drawn.ledger.emplace_back();
    c.apply(stage, row, row.ledger ? &drawn.ledger.back() : nullptr);
    if (!c.in_range()) return drawn.status = Drawn::Status::kOutOfRange, drawn;
  }
  const size_t chosen = c.draw(row);
  drawn.token_id = c.id(chosen);
  drawn.survivors = c.size();
  drawn.logprob = logits[drawn.token_id] - log_sum;
  if (row.top == 0) return drawn;
  drawn.chain = c.likeliest(row.top);
  drawn.chain_logprob = c.logprob(chosen);
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
  read.rank = rank_of(logits, vocab, (size_t)next);
  return read;
}

}  // namespace cutaway
