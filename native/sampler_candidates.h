// The candidates that are left of a row of logits, on the way to a token.
//
// Knows which are likeliest and luckiest, and how to keep some of them; not the stages, other rows, or what
// is recorded.
#pragma once
#include <vector>

#include "sampler.h"
#include "sampler_math.h"

namespace cutaway {

// Kept from row to row, so that a step allocates nothing.
struct Scratch {
  std::vector<float> logits, floats, maxima;
  std::vector<uint32_t> ids, index, words;
  std::vector<uint16_t> bins;
  std::vector<uint64_t> keys, sorted;
  std::vector<double> weights;
  std::vector<int32_t> counts;  // of output ids; zero between rows

  void reserve(size_t n);
};

// Starts as the whole row, in the model's own memory, which is only read.
class Candidates {
 public:
  Candidates(const Kernels& k, Scratch& s, const float* logits, size_t n, const RowStats& stats);

  size_t size() const { return n_; }
  size_t vocab() const { return vocab_; }
  float logit(size_t index) const { return z_[index]; }
  uint32_t id(size_t index) const { return all_ ? (uint32_t)index : s_.ids[index]; }
  size_t find(int64_t id) const;  // its index; size() where it is not in
  bool is_in_range() const;  // whether no logit that the stages made is too large for float32
  void apply(const Stage& stage, const Row& row, StageReport* report);
  // The index of the chosen one.
  size_t draw(const Row& row);
  // log Σ exp(logit) of those who are in.
  double log_sum() { return top_ + exact_log(mass()); }
  double logprob(size_t index) { return z_[index] - log_sum(); }
  size_t rank(size_t index) const { return k_.rank_of(z_, n_, index); }
  float highest() const { return top_; }
  double entropy();
  // The likeliest of those who are in, best first.
  std::vector<Likely> likeliest(size_t count);

 // -- for the stages ------------------------------------------------------------------------------

  // Logits that may be written; call note_change() afterwards.
  float* copy_row();
  float* logit_at(int64_t id);  // of one that is in, after copy_row(); else null
  // Note that no logit's magnitude is larger than before, times `factor`, plus `more`.
  void note_change(double factor, double more);
  std::vector<int32_t>& counts() { return s_.counts; }  // (vocab): zero, and to be left so
  void divide(float by);
  void top_k(double k, StageReport* report);
  void top_p(double p, StageReport* report);
  // Keep those whose logit is at least the highest plus `depth`, which is 0 or less.
  void keep_within(double depth, StageReport* report);
  // Keep those for whom in(index) is true; none may be left.
  template <typename In> void keep_if(In in, StageReport* report) {
    size_t m = 0;
    for (size_t i = 0; i < n_; i++) {
      s_.index[m] = (uint32_t)i;
      m += (bool)in(i);
    }
    keep_these(m, report);
  }
  uint32_t* index() { return s_.index.data(); }
  // Keep the m at index(), ascending, which need not be the best.
  void keep_these(size_t m, StageReport* report) { keep(m, report), find_top(); }
  double mass();  // Σ exp(logit - highest)
  // mass(), and Σ exp(logit - highest) · (highest - logit).
  std::pair<double, double> mass_and_depth();
  std::vector<double> weights();  // exp(logit - highest)
  // fixed_math.ordered_sum of what f makes of the logits.
  template <typename F> double ordered_sum(F f) const {
    double lanes[16] = {0};
    size_t i = 0;
    for (; i + 16 <= n_; i += 16)
      for (size_t j = 0; j < 16; j++) lanes[j] = lanes[j] + f((double)z_[i + j]);
    for (size_t j = 0; i + j < n_; j++) lanes[j] = lanes[j] + f((double)z_[i + j]);
    for (size_t n = 8; n > 0; n /= 2)
      for (size_t j = 0; j < n; j++) lanes[j] = lanes[j] + lanes[j + n];
    return lanes[0];
  }
  uint64_t key(size_t index) const { return key_of(z_[index], index); }  // ascending: best first
  uint64_t last_of(size_t k) { return best(z_, n_, k)[k - 1]; }          // the key of the k-th best

 private:
  uint64_t* best(const float* z, size_t n, size_t k);
  // sampler_top_p.cpp
  double width_of(double p, double mass) const;
  bool walk_narrow(double p, uint64_t* last);
  size_t collect_within(double width);
  bool walk_best(double low, double high, size_t m, double width, uint64_t* last);
  bool walk_bins(double p, uint64_t* last);
  void keep_to(uint64_t last, StageReport* report);
  void keep(size_t m, StageReport* report);
  void find_top();
  double fill(size_t m, StageReport* report);
  void top_removed(size_t m, StageReport* report);
  void copy_removed(size_t m, float* out) const;
  size_t luckiest(const Row& row);

  const Kernels& k_;
  Scratch& s_;
  const size_t vocab_;
  const float* z_;    // (n): the row, or s_.logits
  size_t n_;
  float top_;         // the highest logit
  double magnitude_;  // no logit is larger, plus or minus
  bool all_ = true;   // ids are indices; else they are s_.ids (n), ascending
  double mass_ = -1;  // Σ exp(logit - top), once it is known
};

}  // namespace cutaway
