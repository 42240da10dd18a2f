#include "sampler_observe.h"

#include <math.h>

#include <algorithm>

namespace cutaway {

Observer::Observer(const Kernels& k, const float* logits, const Row& row, Candidates& c)
    : k_(k), logits_(logits), vocab_(c.size()), row_(row) {
  seen_.maximum = (double)c.highest() + 0.0;  // one zero, not two
  seen_.entropy = c.entropy();
  seen_.log_sum = c.log_sum();
  k.logit_histogram(logits, vocab_, c.highest(), seen_.logit_histogram.data());
  for (const auto& [id, logprob] : c.likeliest(row.observe->top))
    seen_.candidates.push_back({id, logits[id], logits[id]});
  top_ = seen_.candidates.size();
  if (row.forced) follow(*row.forced);
  for (uint32_t id : row.observe->track) follow(id);
}

Candidate& Observer::follow(uint32_t id) {
  auto& all = seen_.candidates;
  const auto match = std::find_if(all.begin(), all.end(), [&](const Candidate& it) { return it.id == id; });
  return match != all.end() ? *match : all.emplace_back(Candidate{id, logits_[id], logits_[id]});
}

// Until the end a candidate's `delta` is its logit, as the stages before the temperature made it.
void Observer::begin_stage(const Stage& stage, const Candidates& c) {
  if (!stage.kind->heats || heated_) return;
  heated_ = true;
  if (stage_ == 0) return;  // nothing was applied to the row yet
  cold_.reserve(c.size());
  for (size_t i = 0; i < c.size(); i++) cold_.emplace_back(c.id(i), c.logit(i));
}

void Observer::end_stage(const Candidates& c) {
  for (Candidate& it : seen_.candidates) {
    if (it.removed_by) continue;
    const size_t at = c.find(it.id);
    if (at == c.size()) it.removed_by = stage_;
    else if (!heated_) it.delta = c.logit(at);
  }
  stage_++;
}

// The token's place is after the likeliest. If it has not been followed so far it was drawn, so it
// has survived every stage.
void Observer::place(uint32_t token, const Candidates& c) {
  auto& all = seen_.candidates;
  const size_t count = all.size();
  const auto at = &follow(token) - all.data();
  if (all.size() > count) {
    const auto cold = std::lower_bound(cold_.begin(), cold_.end(), std::pair{token, -INFINITY});
    if (cold != cold_.end()) all[count].delta = cold->second;
    else if (!heated_) all[count].delta = c.logit(c.find(token));
  }
  const auto top = (ptrdiff_t)top_;
  if (at > top) std::rotate(all.begin() + top, all.begin() + at, all.begin() + at + 1);
}

void Observer::luck() {
  constexpr size_t room = 32;  // luck_some reads and writes so far beyond
  std::vector<uint32_t> ids(seen_.candidates.size() + room), words(ids.size());
  for (size_t i = 0; i < seen_.candidates.size(); i++) ids[i] = seen_.candidates[i].id;
  k_.luck_some(ids.data(), seen_.candidates.size(), row_.place, row_.seed, words.data());
  for (size_t i = 0; i < seen_.candidates.size(); i++) seen_.candidates[i].luck = gumbel(words[i]);
}

Observation Observer::finish(uint32_t token, Candidates& c) {
  place(token, c);
  seen_.final_log_sum = c.log_sum();
  if (row_.observe->after_chain) seen_.after_chain = c.likeliest(row_.observe->top);
  size_t n = 0;
  for (Candidate& it : seen_.candidates) {
    it.delta = it.delta - it.logit;
    it.rank = n++ < top_ ? n : k_.rank_of(logits_, vocab_, it.id);
    if (!it.removed_by) it.final_logprob = c.logprob(c.find(it.id));
    if (it.id == token) seen_.rank = it.rank;
  }
  if (!row_.chain->greedy) luck();
  if (const size_t at = c.find(token); at < c.size()) {
    seen_.final_rank = c.rank(at);
    seen_.final_logprob = c.logprob(at);
  }
  return std::move(seen_);
}

}  // namespace cutaway
