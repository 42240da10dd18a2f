#include "sampler_look.h"

#include <algorithm>

namespace cutaway {

Onlooker::Onlooker(const Kernels& k, const float* logits, const Row& row, Candidates& c)
    : k_(k), logits_(logits), vocab_(c.size()), row_(row) {
  seen_.maximum = (double)c.highest() + 0.0;  // one zero, not two
  seen_.entropy = c.entropy();
  seen_.log_sum = c.log_sum();
  k.sketch(logits, vocab_, c.highest(), seen_.sketch.data());
  for (const auto& [id, logprob] : c.likeliest(row.look->top)) seen_.candidates.push_back({id});
  top_ = seen_.candidates.size();
  if (row.forced) follow(*row.forced);
  for (uint32_t id : row.look->watch) follow(id);
}

Candidate& Onlooker::follow(uint32_t id) {
  auto& all = seen_.candidates;
  const auto found = std::find_if(all.begin(), all.end(), [&](const Candidate& it) { return it.id == id; });
  return found != all.end() ? *found : all.emplace_back(Candidate{id});
}

void Onlooker::after(size_t stage, const Candidates& c) {
  for (Candidate& it : seen_.candidates)
    if (!it.removed_by && c.find(it.id) == c.size()) it.removed_by = stage;
}

// The token's place is after the likeliest. If nobody has followed it yet it was drawn, so it has
// survived every stage.
Candidate& Onlooker::chosen(uint32_t id) {
  auto& all = seen_.candidates;
  const size_t at = (size_t)(&follow(id) - all.data());
  if (at < top_) return all[at];
  std::rotate(all.begin() + (ptrdiff_t)top_, all.begin() + (ptrdiff_t)at, all.begin() + (ptrdiff_t)at + 1);
  return all[top_];
}

// What the stages made of one logit, up to the temperature or the one that removed it.
float Onlooker::delta(const Candidate& it) const {
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

void Onlooker::luck() {
  constexpr size_t room = 32;  // luck_some reads and writes so far beyond
  std::vector<uint32_t> ids(seen_.candidates.size() + room), words(ids.size());
  for (size_t i = 0; i < seen_.candidates.size(); i++) ids[i] = seen_.candidates[i].id;
  k_.luck_some(ids.data(), seen_.candidates.size(), row_.position, row_.seed, words.data());
  for (size_t i = 0; i < seen_.candidates.size(); i++) seen_.candidates[i].luck = gumbel(words[i]);
}

Observed Onlooker::tell(uint32_t token, Candidates& c) {
  chosen(token);
  seen_.final_log_sum = c.log_sum();
  size_t n = 0;
  for (Candidate& it : seen_.candidates) {
    it.logit = logits_[it.id];
    it.delta = delta(it);
    it.rank = n++ < top_ ? n : k_.rank_of(logits_, vocab_, it.id);
    if (!it.removed_by) it.final_logprob = c.logprob(c.find(it.id));
    if (it.id == token) seen_.rank = it.rank;
  }
  if (!row_.chain->greedy) luck();
  const size_t at = c.find(token);
  if (at < c.size()) seen_.final_rank = c.rank(at);
  return std::move(seen_);
}

}  // namespace cutaway
