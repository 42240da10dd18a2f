#include "sampler.h"

#include "sampler_look.h"

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
  RowStats stats;
  k.row_stats(logits, vocab, &stats);
  drawn.row_hash = stats.hash;
  if (!is_finite(stats)) return drawn.status = Drawn::Status::kNotFinite, drawn;
  Candidates c(k, scratch, logits, vocab, stats);
  std::optional<Onlooker> onlooker;
  if (row.look) onlooker.emplace(k, logits, row, c);
  const double log_sum = logprob ? c.log_sum() : 0;
  drawn.model = c.likeliest(row.top);
  for (size_t n = 0; n < row.chain->stages.size(); n++) {
    StageReport* report = row.ledger || row.look ? &drawn.ledger.emplace_back() : nullptr;
    c.apply(row.chain->stages[n], row, report);
    if (!c.in_range()) return drawn.status = Drawn::Status::kOutOfRange, drawn;
    if (onlooker) onlooker->after(n, c);
  }
  drawn.own = c.id(c.draw(row));
  drawn.token_id = row.forced.value_or(drawn.own);
  drawn.survivors = c.size();
  drawn.logprob = logits[drawn.token_id] - log_sum;
  drawn.chain = c.likeliest(row.top);
  const size_t at = c.find(drawn.token_id);
  if (at < c.size() && (row.top || row.look)) drawn.chain_logprob = c.logprob(at);
  if (onlooker) drawn.observed = onlooker->tell(drawn.token_id, c);
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
