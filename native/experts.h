// A mixture of experts: each row goes through the few MLPs that its scores choose.
#pragma once
#include "ops.h"

namespace cutaway {

// compute/model/mixture.py explains these.
enum class Gating { softmax, sigmoid, sparsemixer };
struct Mixture {
  int used;  // experts of a row
  Gating gating;
  bool normed;  // whether their weights are made to add up to 1
  float scale;
  int groups, used_groups, best_of_group;
  Map activation;  // of gate and up, or of up alone
  float limit;     // its number
  bool weighs_input;
  double tolerance;  // of sparsemixer
  std::vector<float> bias;  // of the choice; empty: none
};

// A matrix and what is added to its products, if anything.
struct Biased {
  Packed weight;
  std::vector<float> bias = {};
};

struct Expert {
  std::optional<Biased> gate;
  Biased up, down;
};

// Rows are sorted by expert, so that each of an expert's panels is read once for all its rows. A row's results
// are summed in the order of its own scores, so they do not depend on other rows.
class Experts : public Op {
 public:
  struct Args {
    Rows rows;
    Places in;  // quantised weights read quant blocks, float weights floats
    View scores;
    Mixture mixture;
    View out;
    View inner{-1, 0};  // where what each expert's down reads is left, by rank; nowhere without a buffer
  };
  Experts(Args args, std::vector<Expert> experts);
  bool streams() const override { return true; }
  void run(Step& step, int thread) override;
  void keep_share(double share) override;
  const KeptExperts* kept_experts() const override { return kept_experts_ ? &*kept_experts_ : nullptr; }

 private:
  static constexpr int kStretch = 128;     // rows that stay in the cache for a panel
  static constexpr int kGrain = 8;          // panels that a thread takes at once, at most
  static constexpr int kFirstLines = 256;  // of a matrix's panel, while the threads meet
  static constexpr int kNextLines = 128;    // of the next expert's, while this one's last is multiplied
  struct Choice { int row, rank; float weight; };  // the rank-th expert of a row

  void route(Step& step);
  void expect();
  void drop() const;
  void choose(const Step& step, int row);
  void mix_sparsely(const Step& step, int row, const float* score);
  void weigh(const Step& step, const float* score, float top);
  void keep_groups();
  void gather(const Step& step, int thread);
  void prefetch_panel(int item, bool inward, int lines) const;
  void multiply(Step& step, int thread, bool inward);
  void multiply_panel(const Step& step, int index, int panel, bool inward);
  void multiply_rows(const Step& step, const Biased& matrix, int panel, int first, int rows, bool inward, Ahead ahead,
                     float* out) const;
  void quantise(const Step& step, int thread);
  void mix(const Step& step, int thread) const;
  ActRow act(std::vector<ActBlock>& rows, int blocks, int item) const;

  const Args args_;
  const std::vector<Expert> experts_;
  const int hidden_, inner_;
  const bool float_in_, float_down_;

  // The thread that chooses has each expert's rows, their order, and for a row's scores the weights, how much each expert
  // is wanted, and the sum of all weights.
  std::vector<std::vector<Choice>> by_expert_;
  std::vector<int> order_;
  std::vector<double> weight_, wanted_;
  std::vector<float> below_;
  double whole_ = 1;

  // One item per choice, sorted by expert.
  std::vector<Choice> choices_;
  std::vector<int> active_;  // the experts that have items
  std::vector<int> first_;   // of each of these, and the end
  std::vector<int> place_;  // by row · used + rank: which item
  std::vector<float> x_, middle_, result_;
  std::vector<ActBlock> x_act_, middle_act_;
  WorkQueue inward_, outward_;
  std::optional<KeptExperts> kept_experts_;  // where experts are in a file, and not all of them stay in memory
  std::vector<int> dropped_;         // after this step
};

}  // namespace cutaway
