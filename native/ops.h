// The ops of a plan. Their rows are the batch's, or, after Gather, those that want logits.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "plan.h"

namespace cutaway {

enum class Rows { kAll, kLogits };

inline int count(const Step& step, Rows rows) {
  return rows == Rows::kAll ? step.batch.rows : step.batch.logits;
}

// Where a tensor is: its floats, its quant blocks (a buffer's number), or both; -1: not there.
struct Places {
  View floats{-1, 0};
  int act = -1;
};

inline void copy(ActRow from, int blocks, ActRow to) {
  for (int i = 0; i < blocks; i++) to.first[i * to.apart] = from.first[i * from.apart];
}

// Looks up, for each row of the batch, a matrix's row by token, position or type; or always the first.
class Embed : public Op {
 public:
  enum class By { kToken, kPosition, kType };
  Embed(Plan& plan, Packed table, View out, By by);  // tells the plan how many tokens, or types, there are
  void run(Step& step, int thread) override;

 private:
  Packed table_;
  View out_;
  By by_;
};

// A matrix as the file has it. read may throw, and then nothing has been computed.
struct StoredTable {
  Format format;
  size_t bytes;
  std::function<void(std::span<const int32_t> rows, size_t row_bytes, uint8_t* out)> read;

  // Each token's row; a token beyond the last row has the first.
  void look_up(std::span<const int32_t> tokens, size_t row_bytes, uint8_t* out) const;
};

// The same by token, of a table whose rows are read when they are wanted; after Embed, which knows how many tokens there are.
class EmbedStored : public Op {
 public:
  EmbedStored(StoredTable table, int cols, View out);
  void prepare(Step& step) override;
  void run(Step& step, int thread) override;

 private:
  const StoredTable table_;
  const int cols_;
  const View out_;
  const size_t row_bytes_;
  std::vector<uint8_t> rows_;  // of the step's tokens
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

// Joins rows group by group: the numbers of a, then those of b.
class Join : public Op {
 public:
  struct Part { View from; int size; };  // numbers of a group
  Join(Rows rows, Part a, Part b, int groups, View out) : rows_(rows), a_(a), b_(b), groups_(groups), out_(out) {}
  void run(Step& step, int thread) override;

 private:
  Rows rows_;
  Part a_, b_;
  int groups_;
  View out_;
};

// Number i of a row becomes its number order[i].
class Reorder : public Op {
 public:
  Reorder(Rows rows, View in, std::vector<int32_t> order, View out)
      : rows_(rows), in_(in), order_(std::move(order)), out_(out) {}
  void run(Step& step, int thread) override;

 private:
  Rows rows_;
  View in_;
  std::vector<int32_t> order_;
  View out_;
};

// No weight: no norm. A weight alone: RMS norm. A weight and a bias: layer norm. Each `group` of numbers is normed by
// itself; all have the same weights, or each its own. A limit: x · weight instead, made shorter where it is longer than it.
struct Norm {
  std::vector<float> weight, bias;
  float eps;
  int group;
  float limit = 0;  // 0: none
};

class Normalise : public Op {
 public:
  Normalise(Rows rows, View in, int width, Norm norm, Places out);
  void run(Step& step, int thread) override;
  bool is_shared(const Step& step) const override;
  size_t scratch() const override { return out_.floats.buffer < 0 ? width_ : 0; }

 private:
  void normalise(const Step& step, const float* x, float* y) const;

  Rows rows_;
  View in_;
  int width_;
  Norm norm_;
  Places out_;
};

// One number of each row: the root of the mean of its squares, or of the squares of what its numbers differ from their mean.
class Magnitude : public Op {
 public:
  struct Args { Rows rows; View in; int width; bool is_centred; View out; };
  explicit Magnitude(Args args) : args_(args) {}
  void run(Step& step, int thread) override;

 private:
  const Args args_;
};

// Each number times a weight.
class Weigh : public Op {
 public:
  struct Args { Rows rows; View in; std::vector<float> weight; View out; };
  explicit Weigh(Args args) : args_(std::move(args)) {}
  void run(Step& step, int thread) override;

 private:
  const Args args_;
};

// Each head of v times the dot product of that head of a and b, added to y.
class OwnValue : public Op {
 public:
  struct Args { Rows rows; View a, b, v, y; int width, size; View out; };
  explicit OwnValue(Args args);
  void run(Step& step, int thread) override;

 private:
  const Args args_;
};

// Shares of each `group` of numbers, by the exponentials of these.
class Softmax : public Op {
 public:
  struct Args { Rows rows; View in; int width, group; View out; };
  explicit Softmax(Args args);
  void run(Step& step, int thread) override;

 private:
  const Args args_;
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

// Number by number.
class Elementwise : public Op {
 public:
  struct Args {
    Rows rows;
    Map kind;
    View a, b;  // b.buffer < 0: one input
    float number;
    int width;
    View out;
    bool spread = false;  // a has one number, for all of a row
  };
  explicit Elementwise(Args args) : args_(args) {}
  void run(Step& step, int thread) override;

 private:
  const Args args_;
};

// One or more matrices on the same input.
class Linear : public Op {
 public:
  struct Part {
    Packed weight;
    View out;
    std::vector<float> bias;  // empty: none
    int column = 0;           // the first number that it reads of a row; where these are quantised, of a quant block
  };
  // What becomes of the products: stored, added to what is there already, or, of two parts, put through a gate.
  struct Finish {
    bool adds = false;
    std::optional<Map> gate = {};
  };
  // Quantised weights read quant blocks, float weights floats.
  Linear(Rows rows, Places in, Finish finish, std::vector<Part> parts);
  void prepare(Step& step) override;
  void run(Step& step, int thread) override;
  bool streams() const override { return true; }
  void prefetch(const Step& step, int thread) const override;
  size_t weight_bytes() const override;
  void set_streaming() override { streaming_ = true; }
  void drop_pages() const override;

 private:
  static constexpr int kStretch = 128;  // rows that stay in the cache for every panel
  const Part& part_of(int& panel) const;
  static bool is_many(const Step& step, const Part& part, int rows);
  void panels(Step& step, int thread, int first, int last, int begin, int end);
  int panels_together(const Step& step, const Part& part, int panel, int limit, int rows) const;
  void together(Step& step, const Part& part, int panel, int count, int row, int rows);
  void compute(Step& step, int thread, const Part& part, int panel, int row, int rows, Ahead ahead,
               float* out) const;
  static void amend(const Part& part, int panel, int rows, float* out);
  void ask_for(const Step& step, const Part& part, int panel, int row, int rows) const;
  void finish(Step& step, const Part& part, int panel, int row, int rows, const float* out) const;

  Rows rows_;
  Places in_;
  Finish finish_;
  std::vector<Part> parts_;
  std::vector<int> begins_;  // the first panel of each part
  WorkQueue queue_;
  int panels_ = 0;
  bool streaming_ = false;
  int rows_per_item_ = 0;  // rows of an item where rows are dealt; 0 where panels are
};

// Activations as quantised matrices read them, `cols` of them: every 32 are whole multiples of a step.
void round_activations(const Kernels& k, const float* x, int cols, float* out);

struct AttendShape {
  int heads, kv_heads, head_dim;
  float scale, softcap;  // softcap 0: none
  int window;            // tokens seen up to its own; 0: all
  int reach = 0;         // tokens seen to each side of its own; 0: all
  bool chunked = false;  // no token is seen that is not in the same window-th of the text
  bool causal = false;   // no token after its own is seen, even if its limit is later
  int layer = 0;
  int reads = -1;        // the layer whose keys and values it reads, storing none; -1: its own
  int value_first = 0;   // where in a key its value begins, and none is stored; -1: values are stored beside keys
  int value_dim = 0;     // numbers of a value; 0: head_dim, and values are stored
  bool latent() const { return value_dim > 0 && value_first >= 0; }
};

// Bytes of a KV block for the keys, and for the values, of one layer: whole lines of 64, since head_dim is even.
size_t key_bytes(KvFormat f, int kv_heads, int head_dim);
size_t value_bytes(KvFormat f, int kv_heads, int value_dim);
// A layer's keys or values in a KV block, exactly: (kv_heads, kKvBlock, head_dim).
void read_kv(KvFormat f, bool values, const uint8_t* heads, int kv_heads, int head_dim, float* out);

// What a query and a key say of their distance is added to q · k (DeBERTa, arXiv 2006.03654). A token has `count` numbers
// a head in both views; rows: which of them, by query minus key from -(n / 2) to n / 2. Where there are no rows, number d of
// the query's is added at distance d, 0 beyond the last. count 0: nothing is added.
struct Relative {
  View of_query{-1, 0}, of_key{-1, 0};
  int count = 0;
  std::vector<int32_t> rows = {};
};

// Rotate q and k, store k and v, attend.
class Attend : public Op {
 public:
  struct Views { View q, k, v, out; };
  // sinks: of each query head, a score that has a share of the weights and no value; empty: none
  // row_sinks: the same where each row has its own
  // bias: of each query head what is added to scores by distance, from -(n / 2) to n / 2; empty: nothing
  Attend(Plan& plan, Views at, AttendShape shape, Rotation rotation, std::vector<float> sinks = {},
         std::vector<float> bias = {}, Relative relative = {}, View row_sinks = {-1, 0});
  void prepare(Step& step) override;
  void run(Step& step, int thread) override;
  size_t scratch() const override { return partial() + stride_; }

 private:
  struct Tile { int segment, first, rows, last; };  // query rows (row · group + head), largest limit
  int limit(const Batch& batch, int row) const;
  int first_seen(int end) const;
  int last_seen(const Batch& batch, int first_row, int last_row) const;
  void store_row(Step& step, int row, int kv_head);
  void attend_tile(Step& step, const Tile& tile, int kv_head, int first_chunk, int last_chunk, float* run) const;
  void check_whole(const Step& step) const;
  void relate(const Step& step, const Tile& tile, int head, const AttendChunk& chunk, float (*to)[kKvChunk]) const;
  void look_back(const Step& step, const Tile& tile, int kv_head, const AttendChunk& chunk, float (*to)[kKvChunk]) const;
  void finish_row(Step& step, const Tile& tile, int kv_head, int r, const float* partials, int chunks, float* sum) const;
  static constexpr int kMostRows = kMostAttendRows;
  int partial() const { return kMostRows * (stride_ + 2); }  // floats of a tile's partial result

  const Views at_;
  const AttendShape shape_;
  const int back_;            // tokens that a row sees up to its own; 0: all
  const int group_, width_, stride_;  // query heads per KV head; numbers of a value, and of a V row
  const KvFormats formats_;
  KvStore& kv_;
  const KvPlace place_;
  const std::shared_ptr<Angles> angles_;
  const std::vector<float> sinks_, bias_;
  const int biases_;  // numbers of a head
  const Relative relative_;
  const View row_sinks_;
  std::vector<Tile> tiles_;
  WorkQueue queue_;
  bool split_ = false;  // chunks of one tile are items of their own
  int chunks_ = 1;
  std::vector<float> partials_;
};

}  // namespace cutaway
