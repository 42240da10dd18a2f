// The ops that a plan is made of. "Rows" are the batch's, or, after Gather, those that want logits.
#pragma once
#include "plan.h"

namespace cutaway {

enum class Rows { kAll, kLogits };

class Embed : public Op {
 public:
  Embed(Packed table, View out) : table_(std::move(table)), out_(out) {}
  void run(Step& step, int thread) override;

 private:
  Packed table_;
  View out_;
};

// Copy the rows that want logits to the front.
class Gather : public Op {
 public:
  Gather(View in, View out, int width) : in_(in), out_(out), width_(width) {}
  void run(Step& step, int thread) override;

 private:
  View in_, out_;
  int width_;
};

// rms_norm (where there is a weight), to floats (out.buffer >= 0), quant blocks (act >= 0) or both.
class Normalise : public Op {
 public:
  Normalise(Rows rows, View in, int width, std::vector<float> weight, float eps, View out, int act)
      : rows_(rows), in_(in), width_(width), weight_(std::move(weight)), eps_(eps), out_(out), act_(act) {}
  void run(Step& step, int thread) override;
  bool is_shared(const Step& step) const override;

 private:
  Rows rows_;
  View in_;
  int width_;
  std::vector<float> weight_;
  float eps_;
  View out_;
  int act_;
};

// One or more matrices on the same input.
class Linear : public Op {
 public:
  struct Part {
    Packed weight;
    View out;
    std::vector<float> bias;  // empty: none
  };
  enum class Finish { kStore, kAdd, kSiluMul };  // kSiluMul: two parts, silu(first) · second
  // Quantised weights read quant blocks from `act`, float weights read floats from `in`.
  Linear(Rows rows, View in, int act, Finish finish, std::vector<Part> parts);
  void prepare(Step& step) override;
  void run(Step& step, int thread) override;
  void prefetch(const Step& step, int thread) const override;

 private:
  const Part& part_of(int& panel) const;
  void panels(Step& step, int thread, int first, int last, int begin, int end);
  void compute(Step& step, int thread, const Part& part, int panel, int row, int tile, float* out) const;
  void finish(Step& step, const Part& part, int panel, int row, int rows, const float* out) const;

  Rows rows_;
  View in_;
  int act_;
  Finish finish_;
  std::vector<Part> parts_;
  Shares shares_;
  int panels_ = 0;
  int stretch_ = 0;  // rows of an item where rows are dealt; 0 where panels are
};

struct AttendShape {
  int heads, kv_heads, head_dim;
  float scale, softcap;  // softcap 0: none
  int window;            // 0: all
};

// Rotate q and k, store k and v, attend.
class Attend : public Op {
 public:
  // frequencies: radians a position by which each pair of neighbours is turned; the rest is not.
  Attend(Plan& plan, View q, View k, View v, View out, AttendShape shape, std::vector<double> frequencies);
  void prepare(Step& step) override;
  void run(Step& step, int thread) override;

 private:
  struct Tile { int segment, first, rows, last; };  // query rows (row · group + head), largest position
  void store_row(Step& step, int row, int kv_head);
  void rotate(float* head, int position) const;
  void attend_tile(Step& step, const Tile& tile, int kv_head, int first_chunk, int last_chunk, float* run) const;
  void finish_row(Step& step, const Tile& tile, int kv_head, int r, const float* peak, int stride) const;
  int partial() const { return stride_ + 2; }  // floats of one query row's partial result

  const View q_, k_, v_, out_;
  const AttendShape shape_;
  const int group_, stride_;  // query heads per KV head; halves per V row
  const size_t keys_, values_;  // where in a KV block this layer's begin, in halves
  std::vector<double> frequencies_;
  std::vector<float> angles_;  // cos and sin by position, then by pair
  std::vector<Tile> tiles_;
  Shares shares_;
  bool split_ = false;  // chunks of one tile are items of their own
  int chunks_ = 1;
  std::vector<float> partials_;
};

}  // namespace cutaway
