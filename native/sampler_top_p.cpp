// Where top-p cuts: the likeliest tokens that reach a mass together, found without sorting the rest.
//
// The definition adds weights one by one, best first. Few candidates are added up just so, and of many the
// few best, if they suffice. Else whole bins are added up in any order, which differs from the definition's
// sum by rounding alone, and only the bin in which the target is reached is sorted. Where rounding could
// decide, the definition is followed.
#include <math.h>

#include <algorithm>
#include <limits>

#include "sampler_candidates.h"

namespace cutaway {
namespace {

constexpr size_t kBins = 1024;
constexpr size_t kFew = 64;       // candidates not worth binning; weights computed at once
constexpr size_t kMany = 4096;    // candidates not worth sorting
constexpr double kNear = 2e-5;    // twice what `exp_sum_near` may be off by
constexpr size_t kFlat = 3;       // with an n-th of a row within `width_of`, more than kMany are usually wanted
constexpr double kNarrower = 0.75, kNarrowest = 0.01;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Which of `bins` a logit is in, the highest logits in bin 0.
uint16_t bin_of(float depth, float scale, size_t bins) {
  const float at = depth * scale, last = (float)(bins - 1);
  return (uint16_t)(int)(at < last ? at : last);
}

}  // namespace

void Candidates::top_p(double p, StageReport* report) {
  uint64_t last;
  if (report) mass();  // which a report needs exactly
  if (n_ > kMany && (walk_narrow(p, &last) || walk_bins(p, &last))) return keep_to(last, report);
  const double target = p * mass(), width = width_of(p, mass());
  if ((width < 600 && walk_best(target, target, collect_within(width), width, &last)) ||
      walk_best(target, target, collect_within(kInfinity), 64, &last))
    keep_to(last, report);
}

// The key that reaches p of the mass, looked for among the best kMany or fewer; false where these weigh
// less. A mass that is nearly known often decides which key it is.
bool Candidates::walk_narrow(double p, uint64_t* last) {
  const bool is_known = mass_ >= 0;
  const double near = is_known ? mass_ : k_.exp_sum_near(z_, n_, top_), doubt = is_known ? 0 : kNear;
  const double low = p * (near * (1 - doubt)), high = p * (near * (1 + doubt));
  double width = width_of(p, near * (1 - doubt));
  if (!(width < 600)) return false;
  size_t m = collect_within(width);
  if (m > n_ / kFlat) return false;
  for (size_t wider = n_ + 1; m > kMany && m < wider && width > kNarrowest; m = collect_within(width)) {
    wider = m;  // where many tie, nothing is left out by a narrower width
    width *= kNarrower;
  }
  if (m > kMany) return false;
  for (size_t i = 0; i < m; i++) s_.floats[i] = z_[s_.index[i]];
  if (k_.exp_sum_near(s_.floats.data(), m, top_) < low) return false;
  if (walk_best(low, high, m, width, last)) return true;
  const double target = p * mass();
  return walk_best(target, target, m, width, last);
}

// Put those at or above the highest logit minus `width` at s_.index; how many they are.
size_t Candidates::collect_within(double width) {
  return k_.collect(z_, n_, (float)(top_ - width), s_.index.data());
}

// All logits below top - width together weigh less than n · e^-width = (1 - p) · mass.
double Candidates::width_of(double p, double mass) const { return log((double)n_ / ((1 - p) * mass)) + 0.1; }

// Add up weights, best first, of the m best, which are at s_.index; the key that reaches the target,
// which is low … high: false where it is reached by one of these and not by the other.
bool Candidates::walk_best(double low, double high, size_t m, double width, uint64_t* last) {
  const size_t bins = m < kFew ? 1 : kBins;
  const float scale = (float)((double)bins / width);
  uint32_t ends[kBins + 1] = {0};  // of bin b, at b + 1 while counting, at b once all are in
  for (size_t i = 0; i < m; i++) {
    s_.bins[i] = bin_of(top_ - z_[s_.index[i]], scale, bins);
    s_.keys[i] = key_of(z_[s_.index[i]], s_.index[i]);
    ends[s_.bins[i] + 1]++;
  }
  for (size_t b = 1; b < bins; b++) ends[b] += ends[b - 1];
  uint64_t* sorted = s_.sorted.data();
  for (size_t i = 0; i < m; i++) sorted[ends[s_.bins[i]]++] = s_.keys[i];
  double reached = 0;
  for (size_t b = 0, done = 0; done < m;) {
    const size_t begin = done;
    for (; b < bins && done - begin < kFew; done = ends[b++])
      if (!std::is_sorted(sorted + done, sorted + ends[b])) std::sort(sorted + done, sorted + ends[b]);
    for (size_t i = begin; i < done; i++) s_.floats[i - begin] = logit_of(sorted[i]);
    k_.exp_each(s_.floats.data(), done - begin, top_, s_.weights.data());
    for (size_t i = begin; i < done; i++) {
      reached += s_.weights[i - begin];
      if (reached >= low) return *last = sorted[i], reached >= high;
    }
  }
  return false;
}

// The key that reaches p of the mass; false where rounding could decide which one does.
bool Candidates::walk_bins(double p, uint64_t* last) {
  double* weights = s_.weights.data();
  k_.exp_each(z_, n_, top_, weights);
  if (mass_ < 0) mass_ = k_.ordered_sum(weights, n_);
  const double target = p * mass_, width = width_of(p, mass_);
  if (!(width < 600)) return false;
  const float scale = (float)((double)kBins / width);
  const size_t n = n_;  // copies: a store through a pointer could change members
  const float* z = z_;
  const float top = top_;
  uint16_t* bins = s_.bins.data();
  for (size_t i = 0; i < n; i++) bins[i] = bin_of(top - z[i], scale, kBins);
  double sums[2][kBins] = {};  // two, since neighbours in a row often share a bin
  for (size_t i = 0; i < n; i++) sums[i % 2][bins[i]] += weights[i];
  // Two sums of n positive numbers in different orders differ by less than n · 2^-52 of them.
  const double doubt = (double)n * 0x1p-51 * mass_;
  double reached = 0;
  size_t b = 0;
  for (; b < kBins && reached + (sums[0][b] + sums[1][b]) < target; b++) reached += sums[0][b] + sums[1][b];
  uint64_t* keys = s_.keys.data();
  size_t m = 0;
  for (size_t i = 0; i < n; i++)
    if (bins[i] == b) keys[m++] = key_of(z[i], i);
  if (!std::is_sorted(keys, keys + m)) std::sort(keys, keys + m);
  for (size_t i = 0; i < m; i++) {
    if (reached >= target - doubt) return false;
    reached += weights[(uint32_t)keys[i]];
    if (reached >= target + doubt) return *last = keys[i], true;
  }
  return false;
}

}  // namespace cutaway
