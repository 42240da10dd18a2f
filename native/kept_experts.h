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
  KeptExperts(int count, int capacity) : choices_(count), in_memory_(count), capacity_(capacity) {}

  bool is_kept(int expert) const { return in_memory_[expert]; }
  // Count rows of a step that chose an expert. Returns the expert whose memory can be given back after the step: this one,
  // or one that was chosen less often and makes room for it; -1: none.
  int choose(int expert, int rows) {
    choices_[expert] += rows;
    (in_memory_[expert] ? hits_ : misses_)++;
    if (in_memory_[expert]) return -1;
    if (count_ < capacity_) return in_memory_[expert] = true, count_++, -1;
    int least = expert;
    for (int i = 0; i < (int)in_memory_.size(); i++)
      if (in_memory_[i] && choices_[i] < choices_[least]) least = i;
    if (least != expert) in_memory_[least] = false, in_memory_[expert] = true;
    return least;
  }
  // Call it once a step: it makes older choices count less.
  void age() {
    if (++steps_ % kHalfLife == 0)
      for (auto& count : choices_) count /= 2;
  }

  const std::vector<int64_t>& choices() const { return choices_; }  // each expert's rows
  int64_t hits() const { return hits_; }  // experts of steps that were in memory
  int64_t misses() const { return misses_; }    // and that were not

 private:
  static constexpr int kHalfLife = 1024;  // steps
  std::vector<int64_t> choices_;
  std::vector<bool> in_memory_;
  int capacity_, count_ = 0;
  int64_t steps_ = 0, hits_ = 0, misses_ = 0;
};

}  // namespace cutaway
