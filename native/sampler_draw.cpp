// Who is likeliest and who is luckiest of those who are in.
#include <math.h>

#include <algorithm>

#include "sampler_candidates.h"

namespace cutaway {
namespace {

constexpr size_t kFew = 64;      // candidates whose luck is computed exactly at once
constexpr size_t kShared = 4;    // neighbours whose luck is computed together
constexpr double kSharp = 1e9;   // beyond, float64 scores are too coarse for `bounds`
constexpr double kSlack = 1e-3;  // ten times what `bounds` may be short by

}  // namespace

std::vector<Likely> Candidates::likeliest(size_t count) {
  count = std::min(count, n_);
  if (count == 0) return {};
  uint64_t* keys = best(z_, n_, count);
  std::sort(keys, keys + count);
  const double sum = log_sum();
  std::vector<Likely> best_first;
  for (size_t i = 0; i < count; i++) {
    const size_t index = (uint32_t)keys[i];
    best_first.push_back({id(index), z_[index] - sum});
  }
  return best_first;
}

size_t Candidates::draw(const Row& row) {
  if (!row.chain->greedy) return luckiest(row);
  k_.collect(z_, n_, top_, s_.index.data());
  return s_.index[0];
}

// argmax of logit + luck. The exact luck costs two logarithms, so it is computed for those alone whose
// upper bound reaches the score of one that is known.
size_t Candidates::luckiest(const Row& row) {
  uint32_t* words = s_.words.data();
  const uint32_t* ids = s_.ids.data();
  if (all_) {
    k_.luck_all(n_, row.place, row.seed, words);
  } else if (n_ > ids[n_ - 1] / kShared) {
    k_.luck_all(ids[n_ - 1] + 1, row.place, row.seed, words);
    for (size_t i = 0; i < n_; i++) words[i] = words[ids[i]];  // in place: an id is never below its index
  } else {
    k_.luck_some(ids, n_, row.place, row.seed, words);
  }
  const auto score = [&](size_t i) { return (double)z_[i] + gumbel(words[i]); };
  uint32_t* index = s_.index.data();
  size_t m = n_;
  const bool exhaustive = n_ < kFew || fabs((double)top_) > kSharp;
  if (!exhaustive) {
    float* bounds = s_.floats.data();
    const float bound = k_.bounds(z_, words, n_, top_, bounds);
    k_.collect(bounds, n_, bound, index);
    m = k_.collect(bounds, n_, (float)(score(index[0]) - top_ - kSlack), index);
  }
  size_t best = exhaustive ? 0 : index[0];
  double highest = score(best);
  for (size_t j = 1; j < m; j++) {
    const size_t i = exhaustive ? j : index[j];
    const double s = score(i);
    if (s > highest) highest = s, best = i;
  }
  return best;
}

}  // namespace cutaway
