// Which prefetch reads the weights fastest: tried out on a plan's own first steps.
//
// Which one is fastest differs between machines, and neither their names nor a short probe tells. So steps of
// one kind take turns until each choice has been timed often enough. No choice changes a bit. Knows rows and
// seconds, not what a step computes.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "kernels.h"

namespace cutaway {

class PrefetchTrial {
 public:
  // `forced` is the name of a choice, or "" for the fastest. Throws std::invalid_argument for others.
  explicit PrefetchTrial(const std::string& forced);
  // What a step of these rows and logits is to use; then how long it took.
  Ahead begin(int rows, int logits);
  void end(double seconds);
  // What is used for one row, for two, and for more, or "not known yet"; e.g. "far, near, far".
  std::string describe() const;

 private:
  static constexpr int kChoices = 3, kRounds = 9, kMostRows = 64;  // with more rows, reading is not what takes long
  static constexpr double kClearly = 0.98;  // a choice replaces the initial one if it takes less than this share of its time
  struct Kind {  // of steps
    Ahead best;
    std::vector<double> rounds[kChoices];  // seconds, each round of successive steps alike
    bool is_known() const { return rounds[kChoices - 1].size() == kRounds; }
  };
  void conclude(Kind& kind) const;

  bool forced_;
  Kind kinds_[3] = {{Ahead::kNone, {}}, {Ahead::kNone, {}}, {Ahead::kFar, {}}};
  Kind* timed_ = nullptr;  // the running step's, where it counts
  int rows_ = 0, logits_ = 0, turn_ = 0;
  double round_[kChoices] = {};
};

}  // namespace cutaway
