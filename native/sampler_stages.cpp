// What each stage does to the candidates: the twin of src/cutaway/sampling/definitions.py, bit for
// bit. A stage's numbers come in the order in which sampling/stages.py has them.
#include <math.h>
#include <string.h>

#include <algorithm>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

#include "sampler_candidates.h"

namespace cutaway {
namespace {

void logit_bias(Candidates& c, const Stage& stage, const Row&, StageReport*) {
  double largest = 0;
  c.copy_row();
  for (const auto& [id, by] : stage.bias) {
    if (float* z = c.logit_at(id)) *z += by;
    largest = std::max(largest, fabs((double)by));
  }
  c.note_change(1, largest);
}

float penalise(const Stage& stage, float z, int32_t times) {
  const float repetition = (float)stage.numbers[0];
  z = z > 0 ? z / repetition : z * repetition;
  if (times == 0) return z;
  z -= (float)stage.numbers[1];
  return z - (float)stage.numbers[2] * (float)times;
}

void penalties(Candidates& c, const Stage& stage, const Row& row, StageReport*) {
  c.copy_row();
  const auto is_token = [&](int64_t id) { return id >= 0 && (size_t)id < c.vocab(); };
  auto& counts = c.counts();
  for (int64_t id : row.output) if (is_token(id)) counts[(size_t)id]++;
  for (int64_t id : row.chain->prompt_ids)
    if (is_token(id) && !counts[(size_t)id])
      if (float* z = c.logit_at(id)) *z = penalise(stage, *z, 0);
  for (int64_t id : row.output) {
    if (!is_token(id) || !counts[(size_t)id]) continue;
    if (float* z = c.logit_at(id)) *z = penalise(stage, *z, counts[(size_t)id]);
    counts[(size_t)id] = 0;
  }
  const double factor = (float)stage.numbers[0], times = (double)row.output.size();
  c.note_change(std::max(factor, 1 / factor), fabs(stage.numbers[1]) + fabs(stage.numbers[2]) * times);
}

// lengths[n]: how many tokens before tokens[n], going back from n - 1, equal the last ones of all.
std::vector<size_t> common_suffixes(const std::vector<int64_t>& tokens) {
  const size_t n = tokens.size();
  const auto back = [&](size_t i) { return tokens[n - 1 - i]; };
  std::vector<size_t> z(n, 0);  // the Z function of the reversed text
  for (size_t i = 1, begin = 0, end = 0; i < n; i++) {
    if (i < end) z[i] = std::min(end - i, z[i - begin]);
    while (i + z[i] < n && back(z[i]) == back(i + z[i])) z[i]++;
    if (i + z[i] > end) begin = i, end = i + z[i];
  }
  std::vector<size_t> lengths(n, 0);
  for (size_t i = 1; i < n; i++) lengths[n - i] = z[i];  // the token that follows back(i) is n - i
  return lengths;
}

void dry(Candidates& c, const Stage& stage, const Row& row, StageReport*) {
  constexpr double kMaxRepeat = 1e30;
  const double multiplier = stage.numbers[0], base = stage.numbers[1], last_n = stage.numbers[3];
  const size_t allowed = (size_t)stage.numbers[2];
  std::vector<int64_t> recent(row.chain->prompt);
  recent.insert(recent.end(), row.output.begin(), row.output.end());
  if (last_n >= 0 && (double)recent.size() > last_n) recent.erase(recent.begin(), recent.end() - (ptrdiff_t)last_n);
  const std::unordered_set<int64_t> breakers(stage.ids.begin(), stage.ids.end());
  size_t limit = 0;
  while (limit < recent.size() && !breakers.count(recent[recent.size() - 1 - limit])) limit++;
  std::unordered_map<int64_t, size_t> longest;
  const auto lengths = common_suffixes(recent);
  for (size_t n = 1; n < recent.size(); n++) {
    const size_t length = std::min(lengths[n], limit);
    if (length && !breakers.count(recent[n])) longest[recent[n]] = std::max(longest[recent[n]], length);
  }
  double largest = 0;
  c.copy_row();
  for (const auto& [id, length] : longest) {
    float* z = c.logit_at(id);
    if (!z || length < allowed) continue;
    double strength = 1;
    for (size_t k = allowed; k < length && strength * base <= kMaxRepeat && strength * base != strength; k++)
      strength *= base;
    const float by = (float)(multiplier * strength);
    *z -= by, largest = std::max(largest, (double)by);
  }
  c.note_change(1, largest);
}

// The tokens whose bits are set in the mask.
void constraint(Candidates& c, const Stage&, const Row& row, StageReport* report) {
  if (row.mask.empty()) return;
  if (c.size() < c.vocab()) return c.keep_if([&](size_t i) { return row.mask[c.id(i) / 32] >> (c.id(i) % 32) & 1; }, report);
  uint32_t* index = c.index();
  size_t m = 0;
  for (size_t w = 0; w < row.mask.size(); w++)
    for (uint32_t bits = row.mask[w]; bits; bits &= bits - 1) {
      const size_t i = 32 * w + (size_t)__builtin_ctz(bits);
      if (i < c.vocab()) index[m++] = (uint32_t)i;  // bits beyond the vocabulary name no token
    }
  c.keep_these(m, report);
}

void temperature(Candidates& c, const Stage& stage, const Row&, StageReport*) { c.divide((float)stage.numbers[0]); }
void top_k(Candidates& c, const Stage& stage, const Row&, StageReport* report) { c.top_k(stage.numbers[0], report); }
void top_p(Candidates& c, const Stage& stage, const Row&, StageReport* report) { c.top_p(stage.numbers[0], report); }
void min_p(Candidates& c, const Stage& stage, const Row&, StageReport* report) { c.keep_within(stage.numbers[0], report); }

void typical(Candidates& c, const Stage& stage, const Row&, StageReport* report) {
  struct Scored {
    double score;
    uint32_t index;
    bool operator<(const Scored& o) const { return score < o.score || (score == o.score && index < o.index); }
  };
  const auto [mass, depth] = c.mass_and_depth();
  const double mean = depth / mass, target = stage.numbers[0] * mass, top = c.highest();
  const auto weights = c.weights();
  std::vector<Scored> scores(c.size());
  for (size_t i = 0; i < c.size(); i++) scores[i] = {fabs((top - c.logit(i)) - mean), (uint32_t)i};
  double reached = 0;
  size_t done = 0;
  for (size_t want = 256; done < scores.size() && reached < target; want *= 4) {  // no more is sorted than needed
    const auto end = scores.begin() + (ptrdiff_t)std::min(done + want, scores.size());
    std::partial_sort(scores.begin() + (ptrdiff_t)done, end, scores.end());
    while (scores.begin() + (ptrdiff_t)done != end && reached < target) reached += weights[scores[done++].index];
  }
  std::vector<bool> kept_indices(c.size(), false);
  for (size_t i = 0; i < done; i++) kept_indices[scores[i].index] = true;
  c.keep_if([&](size_t i) { return kept_indices[i]; }, report);
}

void top_n_sigma(Candidates& c, const Stage& stage, const Row&, StageReport* report) {
  const double n = (double)c.size(), mean = c.ordered_sum([](double x) { return x; }) / n;
  const double squares = c.ordered_sum([&](double x) { return (x - mean) * (x - mean); });
  c.keep_within(-(stage.numbers[0] * sqrt(squares / n)), report);
}

void xtc(Candidates& c, const Stage& stage, const Row& row, StageReport* report) {
  if (coin(row.seed, row.place) >= stage.numbers[0]) return;
  const auto weights = c.weights();
  const double least = stage.numbers[1] * c.mass();
  const auto likely = (size_t)std::count_if(weights.begin(), weights.end(), [&](double w) { return w >= least; });
  if (likely < 2) return;
  const uint64_t last = c.last_of(likely);  // the least likely of them stays
  c.keep_if([&](size_t i) { return c.key(i) >= last; }, report);
}

constexpr StageKind kinds[] = {
    {"logit_bias", logit_bias}, {"penalties", penalties}, {"dry", dry}, {"constraint", constraint},
    {"temperature", temperature, true}, {"top_k", top_k}, {"typical", typical}, {"top_p", top_p}, {"min_p", min_p},
    {"top_n_sigma", top_n_sigma}, {"xtc", xtc},
};

}  // namespace

const StageKind* stage_kind(const char* name) {
  for (const StageKind& kind : kinds)
    if (strcmp(kind.name, name) == 0) return &kind;
  throw std::invalid_argument("the native sampler has no stage '" + std::string(name) + "'");
}

}  // namespace cutaway
