// A mixture of experts: each row goes through the few MLPs that its scores choose.
#pragma once
#include "ops.h"

namespace cutaway {

struct Expert {
  Packed gate, up, down;
};

// Rows are sorted by expert, so that each of an expert's panels is read once for all its rows; what a
// row gets is summed in the order of its own scores, so it does not depend on the other rows.
class Experts : public Op {
 public:
  // Quantised weights read quant blocks from `act`, float weights read floats from `in`.
  // norm_topk_prob: the weights of a row's experts are scaled to add up to 1.
  Experts(Rows rows, View in, int act, View scores, int used, bool norm_topk_prob, std::vector<Expert> experts,
          View out);
  void run(Step& step, int thread) override;

 private:
  struct Choice { int row, rank; float weight; };  // the rank-th expert of a row

  void route(Step& step);
  void choose(const Step& step, int row, std::vector<std::vector<Choice>>& by_expert) const;
  void gather(const Step& step, int thread);
  void multiply(Step& step, int thread, bool inward);
  void tiles(const Step& step, const Packed& w, int panel, int first, bool inward, int tile, Ahead ahead,
             float* out) const;
  void quantise(const Step& step, int thread);
  void mix(const Step& step, int thread) const;
  ActRow act(std::vector<ActBlock>& rows, int blocks, int item) const;

  const Rows rows_;
  const View in_;
  const int act_;
  const View scores_;
  const int used_;
  const bool norm_topk_prob_;
  const std::vector<Expert> experts_;
  const View out_;
  const int hidden_, inner_;
  const bool float_in_, float_down_;

  // One item per choice, sorted by expert.
  std::vector<Choice> choices_;
  std::vector<int> first_;  // of each expert, and the end
  std::vector<int> place_;  // by row · used + rank: which item
  std::vector<float> x_, middle_, result_;
  std::vector<ActBlock> x_act_, middle_act_;
  WorkQueue inward_, outward_;
};

}  // namespace cutaway
