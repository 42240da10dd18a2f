// The ops that a plan is made of. "Rows" are the batch's, or, after Gather, those that want logits.
#pragma once
#include "plan.h"

namespace cutaway {

enum class Rows { kAll, kLogits };

inline int count(const Step& step, Rows rows) {
  return rows == Rows::kAll ? step.batch.rows : (int)step.logit_rows.size();
}

inline void copy(ActRow from, int blocks, ActRow to) {
  for (int i = 0; i < blocks; i++) to.first[i * to.apart] = from.first[i * from.apart];
}

// The rows of a matrix that the batch's tokens name, or its positions; or for each row the first.
class Embed : public Op {
 public:
  enum class By { kToken, kPosition, kFirst };
  Embed(Packed table, View out, By by) : table_(std::move(table)), out_(out), by_(by) {}
  void run(Step& step, int thread) override;

 private:
  Packed table_;
  View out_;
  By by_;
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

// What a row is divided by: nothing (no weight), its root mean square, or, where there is a bias, the
// deviation from its mean, which is taken away. Each `group` numbers for themselves.
struct Norm {
  std::vector<float> weight, bias;
  float eps;
  int group;
};

// A norm, to floats (out.buffer >= 0), quant blocks (act >= 0) or both.
class Normalise : public Op {
 public:
  Normalise(Rows rows, View in, int width, Norm norm, View out, int act);
  void run(Step& step, int thread) override;
  bool is_shared(const Step& step) const override;

 private:
  void normalise(const Step& step, const float* x, float* y) const;

  Rows rows_;
  View in_;
  int width_;
  Norm norm_;
  View out_;
  int act_;
};

// A rotated copy: what Attend does in place, for a plan in which both can be read.
class Rotate : public Op {
 public:
  Rotate(Plan& plan, View in, View out, int heads, int head_dim, Rotation rotation)
      : in_(in), out_(out), heads_(heads), head_dim_(head_dim), angles_(plan.angles(std::move(rotation))) {}
  void prepare(Step& step) override;
  void run(Step& step, int thread) override;

 private:
  View in_, out_;
  int heads_, head_dim_;
  const std::shared_ptr<Angles> angles_;
};

// Number by number. b.buffer < 0: one input.
class Elementwise : public Op {
 public:
  Elementwise(Rows rows, Map kind, View a, View b, float number, int width, View out)
      : rows_(rows), kind_(kind), a_(a), b_(b), number_(number), width_(width), out_(out) {}
  void run(Step& step, int thread) override;

 private:
  Rows rows_;
  Map kind_;
  View a_, b_;
  float number_;
  int width_;
  View out_;
};

// One or more matrices on the same input.
class Linear : public Op {
 public:
  struct Part {
    Packed weight;
    View out;
    std::vector<float> bias;  // empty: none
  };
  // …Mul: two parts, act(first) · second
  enum class Finish { kStore, kAdd, kSiluMul, kGeluMul, kGeluExactMul };
  // Quantised weights read quant blocks from `act`, float weights read floats from `in`.
  Linear(Rows rows, View in, int act, Finish finish, std::vector<Part> parts);
  void prepare(Step& step) override;
  void run(Step& step, int thread) override;
  void prefetch(const Step& step, int thread) const override;
  size_t weight_bytes() const override;
  void pass() override { passing_ = true; }
  void let_go() const override;

 private:
  static constexpr int kStretch = 128;  // rows that stay in the cache for every panel
  bool is_gated() const { return finish_ >= Finish::kSiluMul; }
  Map gate() const;
  const Part& part_of(int& panel) const;
  static bool is_many(const Step& step, const Part& part, int rows);
  void panels(Step& step, int thread, int first, int last, int begin, int end);
  void compute(Step& step, int thread, const Part& part, int panel, int row, int rows, Ahead ahead,
               float* out) const;
  void finish(Step& step, const Part& part, int panel, int row, int rows, const float* out) const;

  Rows rows_;
  View in_;
  int act_;
  Finish finish_;
  std::vector<Part> parts_;
  WorkQueue queue_;
  int panels_ = 0;
  bool passing_ = false;
  int rows_per_item_ = 0;  // rows of an item where rows are dealt; 0 where panels are
};

struct AttendShape {
  int heads, kv_heads, head_dim;
  float scale, softcap;  // softcap 0: none
  int window;            // tokens seen up to its own; 0: all
  int reach = 0;         // tokens seen to each side of its own; 0: all
};

// What a KV block takes for the keys, and for the values, of one layer; codes: see AttendChunk.
size_t key_bytes(int kv_heads, int head_dim, bool codes);
size_t value_bytes(int kv_heads, int head_dim, bool codes);

// Rotate q and k, store k and v, attend.
class Attend : public Op {
 public:
  Attend(Plan& plan, View q, View k, View v, View out, AttendShape shape, Rotation rotation);
  void prepare(Step& step) override;
  void run(Step& step, int thread) override;

 private:
  struct Tile { int segment, first, rows, last; };  // query rows (row · group + head), largest limit
  int limit(const Batch& batch, int row) const;
  int last_seen(const Batch& batch, int first_row, int last_row) const;
  void store_row(Step& step, int row, int kv_head);
  void store_key(const Kernels& k, const float* key, uint8_t* head, int token) const;
  void store_value(const Kernels& k, const float* value, uint8_t* head, int token) const;
  void attend_tile(Step& step, const Tile& tile, int kv_head, int first_chunk, int last_chunk, float* run) const;
  void finish_row(Step& step, const Tile& tile, int kv_head, int r, const float* partials, int chunks) const;
  void merge(const Kernels& k, float* peak, float* total, float* out, const float* next, int r) const;
  static constexpr int kMostRows = 8;                       // query rows of a tile on any tier
  int partial() const { return kMostRows * (stride_ + 2); }  // floats of a tile's partial result

  const View q_, k_, v_, out_;
  const AttendShape shape_;
  const int back_;            // tokens that a row sees up to its own; 0: all
  const int group_, stride_;  // query heads per KV head; numbers per V row
  const bool codes_;
  KvStore& kv_;
  const size_t keys_, values_;  // where in a KV block this layer's begin
  const std::shared_ptr<Angles> angles_;
  std::vector<Tile> tiles_;
  WorkQueue queue_;
  bool split_ = false;  // chunks of one tile are items of their own
  int chunks_ = 1;
  std::vector<float> partials_;
};

}  // namespace cutaway
