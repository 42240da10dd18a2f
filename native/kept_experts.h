// Which experts of a layer stay in memory, where a file has them all: those that were chosen most often.
//
// Knows numbers of experts and how often each was chosen; not where they are or what they compute. What is kept
// changes how long a step takes, and no bit.
#pragma once
#include <stdint.h>

#include <vector>

namespace cutaway {

class KeptExperts {
 public:
  KeptExperts(int count, int most) : chosen_(count), kept_(count), most_(most) {}

  bool is_kept(int expert) const { return kept_[expert]; }
  // So many rows of a step have chosen an expert. Returns the one that needs no memory once they are computed: this one,
  // one that was chosen less often and makes room for it, or -1: none.
  int choose(int expert, int rows) {
    chosen_[expert] += rows;
    (kept_[expert] ? found_ : read_)++;
    if (kept_[expert]) return -1;
    if (count_ < most_) return kept_[expert] = true, count_++, -1;
    int least = expert;
    for (int i = 0; i < (int)kept_.size(); i++)
      if (kept_[i] && chosen_[i] < chosen_[least]) least = i;
    if (least != expert) kept_[least] = false, kept_[expert] = true;
    return least;
  }
  // Once a step: what was chosen long ago counts less.
  void age() {
    if (++steps_ % kHalfLife == 0)
      for (auto& one : chosen_) one /= 2;
  }

  const std::vector<int64_t>& chosen() const { return chosen_; }  // rows, of each expert
  int64_t found() const { return found_; }  // experts of steps that were in memory
  int64_t read() const { return read_; }    // and that were not

 private:
  static constexpr int kHalfLife = 1024;  // steps
  std::vector<int64_t> chosen_;
  std::vector<bool> kept_;
  int most_, count_ = 0;
  int64_t steps_ = 0, found_ = 0, read_ = 0;
};

}  // namespace cutaway
