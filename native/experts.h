// A mixture of experts: each row goes through the few MLPs that its scores choose.
#pragma once
#include "ops.h"

namespace cutaway {

struct Expert {
  Packed gate, up, down;
};

// Rows are sorted by expert, so that each of an expert's panels is read once for all its rows. A row's results
// are summed in the order of its own scores, so they do not depend on other rows.
class Experts : public Op {
 public:
  struct Args {
    Rows rows;
    Places in;  // quantised weights read quant blocks, float weights floats
    View scores;
    int used;             // experts of a row
    bool norm_topk_prob;  // whether their weights are scaled to add up to 1
    View out;
    View inner{-1, 0};  // where what each expert's down reads is left, by rank; nowhere without a buffer
  };
  Experts(Args args, std::vector<Expert> experts);
  void run(Step& step, int thread) override;

 private:
  struct Choice { int row, rank; float weight; };  // the rank-th expert of a row

  void route(Step& step);
  void choose(const Step& step, int row);
  void gather(const Step& step, int thread);
  void multiply(Step& step, int thread, bool inward);
  void tiles(const Step& step, const Packed& w, int panel, int first, bool inward, int tile, Ahead ahead,
             float* out) const;
  void quantise(const Step& step, int thread);
  void mix(const Step& step, int thread) const;
  ActRow act(std::vector<ActBlock>& rows, int blocks, int item) const;

  const Args args_;
  const std::vector<Expert> experts_;
  const int hidden_, inner_;
  const bool float_in_, float_down_;

  // Of the thread that chooses: each expert's rows, the order of the scores, and their exponentials.
  std::vector<std::vector<Choice>> by_expert_;
  std::vector<int> order_;
  std::vector<double> exp_;

  // One item per choice, sorted by expert.
  std::vector<Choice> choices_;
  std::vector<int> first_;  // of each expert, and the end
  std::vector<int> place_;  // by row · used + rank: which item
  std::vector<float> x_, middle_, result_;
  std::vector<ActBlock> x_act_, middle_act_;
  WorkQueue inward_, outward_;
};

}  // namespace cutaway
