// Nearly every filter keeps the keys up to some last one, or the logits from some least one, so
// nothing is ever sorted in full: candidates are collected by a threshold that is known to suffice.
#include "sampler_candidates.h"

#include <math.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <limits>

namespace cutaway {
namespace {

constexpr size_t kRoom = 128;   // spare elements that the kernels may write past the end
constexpr size_t kTopRemoved = 8;  // how many removed tokens a report names
constexpr double kLargest = 1e38;   // magnitudes that no float32 operation of a stage overflows
constexpr double kLittle = 0x1p-20;  // of a mass: a difference is too coarse to show less
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float magnitude_of(const RowStats& stats) {
  float magnitude;
  memcpy(&magnitude, &stats.magnitude, 4);
  return magnitude;
}

}  // namespace

void Scratch::reserve(size_t n) {
  n += kRoom;
  if (logits.size() >= n) return;
  floats.resize(n), maxima.resize(n), ids.resize(n), index.resize(n), words.resize(n);
  bins.resize(n), keys.resize(n), sorted.resize(n), weights.resize(n), counts.resize(n);
  logits.resize(n);  // the last: where memory ends before, all are tried again
}

Candidates::Candidates(const Kernels& k, Scratch& s, const float* logits, size_t n, const RowStats& stats)
    : k_(k), s_(s), vocab_(n), z_(logits), n_(n), top_(stats.max), magnitude_(magnitude_of(stats)) {
  s_.reserve(n);
}

bool Candidates::is_in_range() const { return magnitude_ <= kLargest; }

double Candidates::mass() {
  if (mass_ < 0) mass_ = k_.exp_sum(z_, n_, top_);
  return mass_;
}

std::pair<double, double> Candidates::mass_and_depth() {
  double deep;
  mass_ = k_.exp_sum_deep(z_, n_, top_, &deep);
  return {mass_, deep};
}

double Candidates::entropy() {
  const auto [mass, deep] = mass_and_depth();
  return exact_log(mass) + deep / mass;
}

std::vector<double> Candidates::weights() {
  std::vector<double> shares(n_);
  k_.exp_each(z_, n_, top_, shares.data());
  return shares;
}

void Candidates::apply(const Stage& stage, const Row& row, StageReport* report) {
  stage.kind->apply(*this, stage, row, report);
  if (report && n_) report->survivors = n_, report->log_sum = log_sum();
}

// -- logits that change -----------------------------------------------------------------------------

float* Candidates::copy_row() {
  if (z_ != s_.logits.data()) memcpy(s_.logits.data(), z_, n_ * sizeof(float));
  z_ = s_.logits.data();
  mass_ = -1;
  return s_.logits.data();
}

size_t Candidates::find(int64_t id) const {
  if (id < 0 || (size_t)id >= vocab_) return n_;
  if (all_) return (size_t)id;
  const auto end = s_.ids.begin() + (ptrdiff_t)n_;
  const auto at = std::lower_bound(s_.ids.begin(), end, (uint32_t)id);
  return at != end && *at == id ? (size_t)(at - s_.ids.begin()) : n_;
}

float* Candidates::logit_at(int64_t id) {
  const size_t index = find(id);
  return index < n_ ? s_.logits.data() + index : nullptr;
}

void Candidates::note_change(double factor, double more) {
  magnitude_ = magnitude_ * factor + more;
  top_ = k_.max_of(z_, n_);
}

void Candidates::divide(float by) {
  k_.divide(z_, by, (int)n_, s_.logits.data());
  z_ = s_.logits.data();
  top_ /= by;
  magnitude_ /= by;
  mass_ = -1;
}

// -- filters --------------------------------------------------------------------------------------

// The keys of the k best of n logits, in no order but that the last of them comes last; 1 <= k <= n.
uint64_t* Candidates::best(const float* z, size_t n, size_t k) {
  // The k-th largest of the maxima of disjoint groups has at least k logits at or above it.
  float least = -kInfinity;
  size_t groups = 1024;
  while (groups < 4 * k && 8 * groups <= n) groups *= 2;
  if (k <= groups && 4 * groups <= n) {
    float* maxima = s_.maxima.data();
    k_.group_max(z, n, groups, maxima);
    std::nth_element(maxima, maxima + k - 1, maxima + groups, std::greater<float>());
    least = maxima[k - 1];
  }
  uint32_t* index = s_.words.data();  // s_.index may hold the survivors
  const size_t m = k_.collect(z, n, least, index);
  uint64_t* keys = s_.keys.data();
  for (size_t i = 0; i < m; i++) keys[i] = key_of(z[index[i]], index[i]);
  std::nth_element(keys, keys + k - 1, keys + m);
  return keys;
}

void Candidates::top_k(double count, StageReport* report) {
  if (count >= (double)n_) return;
  const size_t k = (size_t)count;
  keep_to(best(z_, n_, k)[k - 1], report);
}

// Called after a filter that may have removed the highest logit.
void Candidates::find_top() {
  if (n_ == 0) return;
  const float top = k_.max_of(z_, n_);
  if (top != top_) top_ = top, mass_ = -1;
}

void Candidates::keep_within(double depth, StageReport* report) {
  const double top = top_;
  const auto in = [&](float z) { return (double)z - top >= depth; };
  float least = (float)(top + depth);  // in() is monotone: find the very first float
  while (in(least)) least = nextafterf(least, -kInfinity);
  while (!in(least)) least = nextafterf(least, kInfinity);
  keep(k_.collect(z_, n_, least, s_.index.data()), report);
}

void Candidates::keep_to(uint64_t last, StageReport* report) {
  uint32_t* index = s_.index.data();
  const size_t m = k_.collect(z_, n_, logit_of(last), index);
  size_t survivors = 0;
  for (size_t i = 0; i < m; i++) {
    index[survivors] = index[i];
    survivors += key_of(z_[index[i]], index[i]) <= last;
  }
  keep(survivors, report);
}

// The m candidates at s_.index stay.
void Candidates::keep(size_t m, StageReport* report) {
  if (m == n_) return;
  if (m == 0) return void(n_ = 0);  // nothing to report of a row that fails
  const double kept_mass = report ? fill(m, report) : -1;
  for (size_t i = 0; i < m; i++) {  // in place: an index is never below i
    const uint32_t from = s_.index[i];
    s_.logits[i] = z_[from];
    s_.ids[i] = id(from);
  }
  z_ = s_.logits.data(), n_ = m, all_ = false, mass_ = kept_mass;
}

// Report what it means that only the m candidates at s_.index stay; returns their mass.
double Candidates::fill(size_t m, StageReport* report) {
  float* floats = s_.floats.data();
  for (size_t i = 0; i < m; i++) floats[i] = z_[s_.index[i]];
  report->min_kept_logit = *std::min_element(floats, floats + m) + 0.0f;  // one zero, not two
  const double kept_mass = k_.exp_sum(floats, m, top_);
  double removed_mass = mass() - kept_mass;
  copy_removed(m, floats);
  if (removed_mass < mass() * kLittle) removed_mass = k_.exp_sum(floats, n_ - m, top_);
  report->removed_mass = removed_mass / mass();
  top_removed(m, report);
  return kept_mass;
}

// Report the likeliest of those who are not among the m at s_.index; their logits are in s_.floats.
void Candidates::top_removed(size_t m, StageReport* report) {
  const size_t count = std::min(n_ - m, kTopRemoved);
  uint64_t* keys = best(s_.floats.data(), n_ - m, count);
  std::sort(keys, keys + count);
  const uint32_t* survivors = s_.index.data();
  for (size_t i = 0; i < count; i++) {
    const uint32_t place = (uint32_t)keys[i];  // among the removed; add the kept that lie before
    size_t before = 0;
    for (size_t end = m; before < end;) {
      const size_t middle = (before + end) / 2;
      if (survivors[middle] - middle <= place) before = middle + 1;
      else end = middle;
    }
    report->top_removed.push_back(id(place + (uint32_t)before));
  }
}

// Copy the logits of those who are not among the m at s_.index.
void Candidates::copy_removed(size_t m, float* out) const {
  size_t from = 0;
  for (size_t i = 0; i < m; i++) {
    out = std::copy(z_ + from, z_ + s_.index[i], out);
    from = s_.index[i] + 1;
  }
  std::copy(z_ + from, z_ + n_, out);
}

}  // namespace cutaway
