// The ops in which a row depends on rows near it, or on a state that the rows before it have changed.
#pragma once
#include <vector>

#include "ops.h"

namespace cutaway {

constexpr int kMostTaps = 16;

// A weight for each tap and each number of a row, the oldest token's first: (taps, width). more: where a row says what the
// weights of its numbers, in `groups` of neighbours, have more: (groups, taps).
struct ConvWeights {
  std::vector<float> weight, bias;  // bias empty: none
  int width, taps;
  View more{-1, 0};
  int groups = 1;
};

// Each number's weighted sum over the last tokens. The state is the inputs of all these tokens but the newest.
class Conv : public Op {
 public:
  Conv(Plan& plan, View in, View out, ConvWeights weights);
  void prepare(Step& step) override;
  void run(Step& step, int thread) override;

 private:
  int state_rows() const { return weights_.taps - 1; }
  const float* input(const Step& step, int segment, int row) const;

  const View in_, out_;
  const ConvWeights weights_;
  StateStore& states_;
  const size_t at_;  // where in a state this layer's floats begin
  std::vector<float> before_;     // of each sequence, (taps - 1, width)
  std::vector<int> segment_of_;  // by row
};

// Each number's weighted sum over the tokens to both sides of its own, of which a step has all.
class CentredConv : public Op {
 public:
  CentredConv(View in, View out, ConvWeights weights);
  void prepare(Step& step) override;
  void run(Step& step, int thread) override;

 private:
  const View in_, out_;
  const ConvWeights weights_;
  const std::vector<float> zeros_;  // stand in for tokens before the first and after the last
  std::vector<int> segment_of_;     // by row
};

// Ops whose state is a matrix (keys, values) a head, changed by one token after the other: threads take columns of it.
class HeadStates : public Op {
 public:
  HeadStates(Plan& plan, int heads, int keys, int values);
  void prepare(Step& step) override;
  void run(Step& step, int thread) override;
  size_t scratch() const override { return (size_t)keys_ * kColumns; }

 protected:
  static constexpr int kColumns = 64;  // values that a thread takes at a time: of 128 keys they stay in the first cache
  // Some columns of a head, from `first` on.
  struct Columns { int head, first, count; };
  // What all columns need of the rows, of which this thread has a share.
  virtual void begin(Step& step, int thread) = 0;
  // One row. state: (keys, kColumns)
  virtual void change(Step& step, int row, const Columns& columns, float* state) = 0;

  const int heads_, keys_, values_;

 private:
  int groups() const { return (values_ + kColumns - 1) / kColumns; }
  void compute(Step& step, const Step::Segment& segment, const Columns& columns, float* state);

  StateStore& states_;
  const size_t state_;  // where in a state this layer's floats begin
  WorkQueue queue_;
};

struct DeltaShape {
  int k_heads, heads;  // of queries and keys; of values
  int keys, values;    // numbers of each
  bool grouped;        // neighbours among the value heads share a key head; else it is value head mod k_heads
  float learn_factor;  // of what a token changes: 1 or 2
};

// A gated delta net (Yang et al. 2024, arXiv 2412.06464).
class DeltaNet : public HeadStates {
 public:
  struct Views { View qkv, a, b, out; };
  DeltaNet(Plan& plan, Views at, DeltaShape shape, std::vector<float> a, std::vector<float> dt);
  void prepare(Step& step) override;

 private:
  void begin(Step& step, int thread) override;
  void change(Step& step, int row, const Columns& columns, float* state) override;
  void make_units(Step& step, int row, int k_head);

  const Views at_;
  const DeltaShape shape_;
  const std::vector<float> a_, dt_;  // of each head, or of each key of a head
  std::vector<float> units_, keep_, learn_;  // by row: queries and keys of length 1; as a_; of each head
};

// The heads of RWKV-7 (Peng et al. 2025, arXiv 2503.14456).
class Wkv : public HeadStates {
 public:
  struct Views { View v, r, keep, k, removed, loss, out; };
  Wkv(Plan& plan, Views at, int heads, int size) : HeadStates(plan, heads, size, size), at_(at) {}

 private:
  void begin(Step&, int) override {}
  void change(Step& step, int row, const Columns& columns, float* state) override;

  const Views at_;
};

// The heads of Mamba 2 (Dao & Gu 2024, arXiv 2405.21060); neighbours among them share a key and a query.
class Mamba : public HeadStates {
 public:
  struct Views { View vkq, dt, out; };
  struct Shape { int groups, heads, keys, values; };
  // Each head's a, what is added to its step, and the share of a value that goes to the output.
  struct Weights { std::vector<float> a, dt, skip; };
  Mamba(Plan& plan, Views at, Shape shape, Weights weights);
  void prepare(Step& step) override;

 private:
  void begin(Step& step, int thread) override;
  void change(Step& step, int row, const Columns& columns, float* state) override;

  const Views at_;
  const Shape shape_;
  const Weights weights_;
  std::vector<float> keep_, step_;  // of each row and head
};

// Mamba 1 (Gu & Dao 2023, arXiv 2312.00752): a number of the input is one column, whose steps are its own.
class Mamba1 : public HeadStates {
 public:
  struct Views { View x, dt, k, q, out; };
  // Each key and column has an a; each column, the share of a number that goes to the output.
  struct Weights { std::vector<float> a, skip; };
  Mamba1(Plan& plan, Views at, int keys, int columns, Weights weights);

 private:
  void begin(Step&, int) override {}
  void change(Step& step, int row, const Columns& columns, float* state) override;

  const Views at_;
  const Weights weights_;
};

}  // namespace cutaway
