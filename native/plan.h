// A plan: the ops of a model, lowered and bound to packed weights, run over a batch in one call.
//
// Knows buffers by number and rows by index; not Python, sequences or sampling.
#pragma once
#include <stdint.h>

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kept_experts.h"
#include "kernels.h"
#include "kv.h"
#include "pack.h"
#include "pool.h"
#include "prefetch.h"
#include "states.h"

namespace cutaway {

struct Batch {
  const int32_t *tokens, *positions, *sequences, *tables, *logit_rows;
  int rows, table_rows, table_cols, logits;
  const int32_t* limits = nullptr;  // of each row: the last position it sees; null: its own
  const int32_t* window_ends = nullptr;  // of each row: the position back from which its windows count; null: its own
  // (table_rows, table_cols · kKvBlock): for each position the first one whose row does not see it; null: all rows do
  const float* hidden_from = nullptr;
  // (states, 2): rows in ascending order, and the slot in which the state after each is stored; null: that after a
  // sequence's last row, in the slot of its KV block
  const int32_t* stored = nullptr;
  int states = 0;
  const int32_t* types = nullptr;  // of each row: which of two texts its token is in, as BERT has it; null: the first
  const float* given = nullptr;    // (rows, input width): what the plan's input has, where it takes one
};

// A buffer's columns: where an op reads or writes.
struct View {
  int buffer, column;
};

// Rows of floats, or of quant blocks, that ops read and write.
struct Buffer {
  int width;
  bool quantised;
  Memory memory;
  size_t row_bytes() const { return quantised ? sizeof(ActBlock) * (width / kQuant) : sizeof(float) * width; }
  float* floats() const { return (float*)memory.data(); }
  ActBlock* acts() const { return (ActBlock*)memory.data(); }
};

// Where in a KV block a layer's keys and values begin.
struct KvPlace { size_t keys, values; };

// How pairs of a head's numbers are rotated (rotary positions).
struct Rotation {
  std::vector<double> frequencies;  // of each pair: radians a position
  bool rotate_half;                 // pair i is (i, i + pairs), else (2i, 2i + 1)
  float attention_factor;           // by which the rotated numbers are multiplied
  double growth = 0;                // they are also multiplied by 1 + growth · log(1 + ⌊(position + offset) / period⌋)
  int period = 1, offset = 0;
  bool is_smooth = false;           // then by 1 + growth · log(max((position + offset) / period, 1)), of the fraction
  bool operator==(const Rotation&) const = default;
};

// A table of cosines and sines, of all positions up to the largest that a batch had.
class Angles {
 public:
  explicit Angles(Rotation rotation) : rotation_(std::move(rotation)) {}
  const Rotation& rotation() const { return rotation_; }
  void reach(int position);
  void rotate(float* head, int position) const;
  // Cosine and sine of each pair at a position that was reached.
  const float* row(int position) const { return table_.data() + (size_t)position * 2 * rotation_.frequencies.size(); }

 private:
  const Rotation rotation_;
  std::vector<float> table_;  // cos and sin by position, then by pair
  int reached_ = 0;           // positions
};

// What the threads share while a step runs.
struct Step {
  struct Segment { int first, rows, sequence, from; };  // rows of one sequence; the slot of the state before them, or -1
  struct Stored { int row, slot; };                        // the state after a row
  struct Scratch { float* base; size_t floats; };  // the first thread's; floats of each thread

  const Kernels& k;
  Pool& pool;
  Batch batch;
  std::span<const Buffer> buffers;
  std::span<const Segment> segments;
  std::span<const Stored> stored;
  Scratch scratches;
  Ahead ahead;  // what is prefetched of the weights
  bool whole = true;  // all ops run in one call; else a later piece may have another number of threads

  // Every thread makes its own quant blocks of few rows: that is cheaper than to wait for one thread.
  static constexpr int kThreadLocalRows = 2;
  bool is_thread_local(int rows) const { return whole && rows <= kThreadLocalRows; }

  int width(int buffer) const { return buffers[buffer].width; }
  float* scratch(int thread) const { return scratches.base + thread * scratches.floats; }
  float* row_at(View v, int row) const {
    const Buffer& b = buffers[v.buffer];
    return b.floats() + (size_t)row * b.width + v.column;
  }
  ActRow act(int buffer, int row, int thread, int rows) const {  // rows: of the whole buffer
    const Buffer& b = buffers[buffer];
    const int blocks = b.width / kQuant;
    const size_t first = is_thread_local(rows) ? (size_t)thread * kThreadLocalRows : 0;
    return act_row(b.acts() + first * blocks, blocks, row, rows);
  }
};

// Items of work dealt to threads: each takes its own range in order, then items of the others'.
class WorkQueue {
 public:
  void deal(int items, int threads);
  bool take(int thread, int grain, int* first, int* last);
  int begin(int thread) const { return (int)((int64_t)items_ * thread / threads_); }

 private:
  struct alignas(64) Cursor { std::atomic<int> next{0}; };
  std::unique_ptr<Cursor[]> cursors_;
  int capacity_ = 0, items_ = 0, threads_ = 1;
};

class Op {
 public:
  virtual ~Op() = default;
  // Called once a step, before the threads start.
  virtual void prepare(Step&) {}
  // Called by every thread.
  virtual void run(Step& step, int thread) = 0;
  // Whether a barrier must follow: not where each thread's result is its own.
  virtual bool is_shared(const Step&) const { return true; }
  // Whether it reads weights, of which the first may be asked for while the op before it ends.
  virtual bool streams() const { return false; }
  // Ask for what this thread will read first. Called before the barriers that come before run.
  virtual void prefetch(const Step&, int) const {}
  // Floats of Step::scratch that each thread needs.
  virtual size_t scratch() const { return 0; }
  // Bytes of the weights that every step reads.
  virtual size_t weight_bytes() const { return 0; }
  // The weights come from a file in every step (see Plan::set_resident_budget): read them in one stream, however many
  // threads there are, since a system reads ahead of one; and give back their memory after use.
  virtual void set_streaming() {}
  virtual void drop_pages() const {}
  // This share of the experts, which are in a file, can stay in memory.
  virtual void keep_share(double) {}
  virtual const KeptExperts* kept_experts() const { return nullptr; }
};

class Plan {
 public:
  struct Options {
    int kv_blocks, context, draft_states = 0;
    KvFormats kv = {KvFormat::f16, KvFormat::f16};
    std::string prefetch = "";  // see PrefetchTrial
  };
  Plan(std::shared_ptr<Pool> pool, const Kernels* kernels, Options options)
      : pool(std::move(pool)), kernels(kernels), options_(options), prefetch_(options.prefetch),
        whole_(std::make_shared<KvStore>(options.kv_blocks)), windowed_(std::make_shared<KvStore>(options.kv_blocks)),
        states_(std::make_shared<StateStore>(options.kv_blocks + options.draft_states)) {}
  // An empty plan with another's threads, tier, context, keys and values, and states. Its layers must claim them again,
  // but for those that only read what the other's layers store.
  explicit Plan(const Plan* other)
      : pool(other->pool), kernels(other->kernels), options_(other->options_), prefetch_(options_.prefetch),
        whole_(other->whole_), windowed_(other->windowed_), states_(other->states_), kv_places_(other->kv_places_) {}

  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  const std::shared_ptr<Pool> pool;
  const Kernels* const kernels;
  int context() const { return options_.context; }
  KvFormats kv_formats() const { return options_.kv; }
  std::string prefetch() const { return prefetch_.describe(); }
  void set_vocab(int tokens) { vocab_ = tokens; }
  int vocab() const { return vocab_; }
  void set_types(int types) { types_ = types; }
  void set_output(View out) { output_ = out; }
  void set_input(View in) { input_ = in; }
  int output_width() const { return width_of(output_); }
  int input_width() const { return input_.buffer < 0 ? -1 : width_of(input_); }
  // Bytes of weights in a file that stay in memory: of the ops that are added next, until one does not fit. Those
  // after it drop their pages after each use. Else the system would drop what was not used for longest, and that is
  // what the next step wants first: it would read the whole file each time.
  // experts: the share of them that can stay in memory beside it
  void set_resident_budget(size_t bytes, double experts) { resident_budget_ = bytes, experts_share_ = experts; }
  // One for each op with experts of which not all stay in memory.
  std::vector<const KeptExperts*> kept_experts() const;

  int add_buffer(int width, bool quantised);
  // The store of the layers with a window, or (0) of those that see the whole text.
  KvStore& kv(int window) { return window ? *windowed_ : *whole_; }
  // Bytes of every KV block for a layer's keys and values; returns where in a block they begin.
  KvPlace claim_kv(int layer, size_t keys, size_t values, int window);
  // The same of a layer that claimed some. Throws std::invalid_argument where none has.
  KvPlace kv_of(int layer) const;
  // Floats of every state for a layer; returns where in a state they begin.
  StateStore& states() { return *states_; }
  size_t claim_state(size_t floats);
  // Shared by all layers with the same rotation.
  std::shared_ptr<Angles> angles(Rotation rotation);
  void add(std::unique_ptr<Op> op);
  // Throws std::invalid_argument where there is no such place in a buffer; -1 is none.
  void check_place(int buffer, int column, bool quantised) const;
  // Each source block's content becomes its target's too. Throws std::invalid_argument where an id names
  // no block, or where the order of the copies would matter.
  void copy_blocks(const int32_t* sources, const int32_t* targets, size_t count);
  // A whole KV block's memory in pieces, each with its bytes, to be read or overwritten between two runs: of the
  // layers that see all, then of those that see a window where the block has a place, or is to be given one
  // (windows). Throws std::invalid_argument where the id names no block.
  std::vector<std::pair<uint8_t*, size_t>> block_memory(int block, bool windows);
  // The same in the layers that see a window alone, in order; a source with the target -1 is freed.
  void copy_windows(const int32_t* sources, const int32_t* targets, size_t count);
  // The same of states, by slot.
  void copy_states(const int32_t* sources, const int32_t* targets, size_t count);
  // A state's floats as bytes; null where the slot has none, unless it is to be given one (find).
  uint8_t* state_memory(int slot, bool find);
  // Logits of the batch's logit rows; valid until the next run. Throws std::invalid_argument for a
  // batch whose numbers do not fit.
  const float* run(const Batch& batch) { return run(batch, 0, ops_.size()); }
  // Run only ops first … last - 1: the pieces of a run follow each other with the same batch, and between them
  // what was computed may be read and written over.
  const float* run(const Batch& batch, size_t first, size_t last);
  size_t length() const { return ops_.size(); }
  // The ops over rows of numbers that are given as the input, (rows, its width): of a plan that neither
  // looks up tokens nor attends. All rows of the output; valid until the next run.
  const float* run_on(const float* numbers, int rows);
  // What the last run left in a buffer: rows of `width` floats, where nothing has been written over them.
  void read(View from, int rows, int width, float* out) const;
  // Write over the first rows of them, between two pieces of a run.
  void write(View to, int rows, int width, const float* numbers);

 private:
  int width_of(View v) const { return buffers_.at(v.buffer).width; }
  void check(const Batch& batch) const;
  void check_limits(const Batch& batch) const;
  void check_window_ends(const Batch& batch) const;
  void check_states(const Step& step) const;
  void check_copies(const int32_t* sources, const int32_t* targets, size_t count) const;
  void reserve(int rows, int logits);
  Step step_of(const Batch& batch, bool whole);
  void take(const Step& step, const float* numbers) const;  // as the input
  const float* execute(Step& step, size_t first, size_t last);
  void check_numbers(View at, int rows, int width) const;

  const Options options_;
  PrefetchTrial prefetch_;
  int vocab_ = 0, types_ = 1;  // vocab_: 0 if no op looks a token up
  size_t resident_budget_ = SIZE_MAX;
  double experts_share_ = 1;
  View output_{0, 0}, input_{-1, 0};
  std::vector<Buffer> buffers_;
  Memory scratch_;
  size_t scratch_floats_ = 0;             // of each thread
  std::vector<Step::Segment> segments_;  // of the running step
  std::vector<Step::Stored> stored_;
  std::vector<std::unique_ptr<Op>> ops_;
  std::vector<const Op*> upcoming_;  // by op: the one to prefetch for when it is done, or null
  std::vector<bool> streaming_;      // by op: whether its weights come from a file in every step
  std::vector<std::shared_ptr<Angles>> angles_;
  size_t last_stream_ = 0;
  std::shared_ptr<KvStore> whole_, windowed_;
  std::shared_ptr<StateStore> states_;
  size_t claimed_[2] = {0, 0};  // bytes of a block, of each
  size_t claimed_state_ = 0;    // floats
  std::map<int, KvPlace> kv_places_;  // by layer
};

}  // namespace cutaway
