// Who is still in, on the way from a row of logits to a token.
//
// Knows what each stage keeps, who is likeliest and who is luckiest. Refuses to know rows beside this
// one, and what is noted of it.
#pragma once
#include <vector>

#include "sampler.h"
#include "sampler_math.h"

namespace cutaway {

// A logit after penalties, of a token that was seen, `times` of them in the output.
inline float penalised(const Stage& stage, float z, int32_t times) {
  z = z > 0 ? z / stage.repetition : z * stage.repetition;
  if (times == 0) return z;
  z -= stage.presence;
  return z - stage.frequency * (float)times;
}

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
  uint32_t id(size_t index) const { return all_ ? (uint32_t)index : s_.ids[index]; }
  size_t find(int64_t id) const;  // its index; size() where it is not in
  bool in_range() const;  // whether float32 held all that the stages have made so far
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

 private:
  double mass();
  float* own();
  float* at(int64_t id);
  void bias(const Stage& stage);
  void penalties(const Stage& stage, const Row& row);
  void constraint(const Row& row, StageReport* report);
  void temperature(float by);
  uint64_t* best(const float* z, size_t n, size_t k);
  void top_k(double k, StageReport* report);
  void top_p(double p, StageReport* report);
  bool cut(double p, double low, double high, uint64_t* last);
  bool cut_at(double low, double high, float least, double width, uint64_t* last);
  void min_p(double log_p, StageReport* report);
  void keep_to(uint64_t last, StageReport* report);
  void keep(size_t m, StageReport* report);
  void find_top();
  double fill(size_t m, StageReport* report);
  void top_removed(size_t m, StageReport* report);
  void removed(size_t m, float* out) const;
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
