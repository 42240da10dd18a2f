#include "sampler_observe.h"

#include <algorithm>

namespace cutaway {

Observer::Observer(const Kernels& k, const float* logits, const Row& row, Candidates& c)
    : k_(k), logits_(logits), vocab_(c.size()), row_(row) {
  seen_.maximum = (double)c.highest() + 0.0;  // one zero, not two
  seen_.entropy = c.entropy();
  seen_.log_sum = c.log_sum();
  k.logit_histogram(logits, vocab_, c.highest(), seen_.logit_histogram.data());
  for (const auto& [id, logprob] : c.likeliest(row.observe->top)) seen_.candidates.push_back({id});
  top_ = seen_.candidates.size();
  if (row.forced) follow(*row.forced);
  for (uint32_t id : row.observe->track) follow(id);
}

Candidate& Observer::follow(uint32_t id) {
  auto& all = seen_.candidates;
  const auto found = std::find_if(all.begin(), all.end(), [&](const Candidate& it) { return it.id == id; });
  return found != all.end() ? *found : all.emplace_back(Candidate{id});
}

void Observer::after_stage(const Candidates& c) {
  for (Candidate& it : seen_.candidates)
    if (!it.removed_by && c.find(it.id) == c.size()) it.removed_by = stage_;
  stage_++;
}

// The token's place is after the likeliest. If it has not been followed so far it was drawn, so it
// has survived every stage.
void Observer::place(uint32_t token) {
  auto& all = seen_.candidates;
  const auto at = &follow(token) - all.data();
  const auto top = (ptrdiff_t)top_;
  if (at > top) std::rotate(all.begin() + top, all.begin() + at, all.begin() + at + 1);
}

// What the stages made of one logit, up to the temperature or the one that removed it.
float Observer::delta(const Candidate& it) const {
  const auto& stages = row_.chain->stages;
  const auto& prompt = row_.chain->prompt;
  float z = it.logit;
  for (size_t n = 0; n < it.removed_by.value_or(stages.size()); n++) {
    const Stage& stage = stages[n];
    if (stage.kind == Stage::Kind::kTemperature) break;
    if (stage.kind == Stage::Kind::kBias)
      for (const auto& [id, by] : stage.bias)
        if (id == it.id) z += by;
    if (stage.kind == Stage::Kind::kPenalties) {
      const auto times = std::count(row_.output.begin(), row_.output.end(), (int64_t)it.id);
      if (times || std::binary_search(prompt.begin(), prompt.end(), (int64_t)it.id))
        z = penalised(stage, z, (int32_t)times);
    }
  }
  return z - it.logit;
}

void Observer::luck() {
  constexpr size_t room = 32;  // luck_some reads and writes so far beyond
  std::vector<uint32_t> ids(seen_.candidates.size() + room), words(ids.size());
  for (size_t i = 0; i < seen_.candidates.size(); i++) ids[i] = seen_.candidates[i].id;
  k_.luck_some(ids.data(), seen_.candidates.size(), row_.position, row_.seed, words.data());
  for (size_t i = 0; i < seen_.candidates.size(); i++) seen_.candidates[i].luck = gumbel(words[i]);
}

Observation Observer::finish(uint32_t token, Candidates& c) {
  place(token);
  seen_.final_log_sum = c.log_sum();
  if (row_.observe->after_chain) seen_.after_chain = c.likeliest(row_.observe->top);
  size_t n = 0;
  for (Candidate& it : seen_.candidates) {
    it.logit = logits_[it.id];
    it.delta = delta(it);
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
