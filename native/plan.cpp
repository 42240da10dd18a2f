#include "plan.h"

#include <math.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <stdexcept>

#include "plain_arithmetic.h"

namespace cutaway {

int Plan::add_buffer(int width, bool quantised) {
  if (width <= 0 || (quantised && width % kQuant))
    throw std::invalid_argument("a buffer cannot be " + std::to_string(width) + " wide");
  buffers_.push_back({width, quantised, {}});
  return (int)buffers_.size() - 1;
}

void Plan::check_place(int buffer, int column, bool quantised) const {
  if (buffer == -1) return;
  if (buffer < 0 || buffer >= (int)buffers_.size() || buffers_[buffer].quantised != quantised || column < 0 ||
      column >= buffers_[buffer].width)
    throw std::invalid_argument("a plan has no such buffer, or column of one");
}

void Plan::add(std::unique_ptr<Op> op) {
  upcoming_.push_back(nullptr);
  streaming_.push_back(op->weight_bytes() > resident_budget_);
  resident_budget_ -= std::min(resident_budget_, op->weight_bytes());
  if (streaming_.back()) op->set_streaming();
  op->keep_share(experts_share_);
  scratch_floats_ = std::max(scratch_floats_, (op->scratch() + 15) / 16 * 16);
  ops_.push_back(std::move(op));
  if (!ops_.back()->streams()) return;
  upcoming_[last_stream_] = ops_.back().get();  // where the stream before it ends
  last_stream_ = ops_.size() - 1;
}

std::vector<const KeptExperts*> Plan::kept_experts() const {
  std::vector<const KeptExperts*> experts;
  for (const auto& op : ops_)
    if (op->kept_experts()) experts.push_back(op->kept_experts());
  return experts;
}

std::shared_ptr<Angles> Plan::angles(Rotation rotation) {
  for (const auto& shared : angles_)
    if (shared->rotation() == rotation) return shared;
  return angles_.emplace_back(std::make_shared<Angles>(std::move(rotation)));
}

void Angles::reach(int position) {
  const size_t row = 2 * rotation_.frequencies.size();
  if (table_.size() < (position + 1) * row) table_.resize((position + 1) * row);  // whole rows, or as before
  for (; reached_ <= position; reached_++) {
    float* to = table_.data() + reached_ * row;
    const int place = reached_ + rotation_.offset, period = rotation_.period;
    const double periods = rotation_.is_smooth ? log(std::max((double)place / period, 1.0)) : log1p(place / period);
    const double growth = 1 + rotation_.growth * periods;
    for (const double frequency : rotation_.frequencies) {
      const double angle = reached_ * frequency;
      *to++ = (float)(growth * rotation_.attention_factor * cos(angle));
      *to++ = (float)(growth * rotation_.attention_factor * sin(angle));
    }
  }
}

void Angles::rotate(float* head, int position) const {
  const int pairs = (int)rotation_.frequencies.size(), apart = rotation_.rotate_half ? pairs : 1;
  const float* angle = table_.data() + (size_t)position * 2 * pairs;
  for (int i = 0; i < pairs; i++) {
    float &first = head[rotation_.rotate_half ? i : 2 * i], &second = (&first)[apart];
    const float x = first, y = second, c = angle[2 * i], s = angle[2 * i + 1];
    first = x * c - y * s;
    second = x * s + y * c;
  }
}

void WorkQueue::deal(int items, int threads) {
  if (capacity_ < threads) cursors_ = std::make_unique<Cursor[]>(threads), capacity_ = threads;
  items_ = items, threads_ = threads;
  for (int t = 0; t < threads; t++) cursors_[t].next.store(begin(t), std::memory_order_relaxed);
}

bool WorkQueue::take(int thread, int grain, int* first, int* last) {
  for (int i = 0; i < threads_; i++) {
    const int owner = (thread + i) % threads_, end = begin(owner + 1);
    if (cursors_[owner].next.load(std::memory_order_relaxed) >= end) continue;
    *first = cursors_[owner].next.fetch_add(grain, std::memory_order_relaxed);
    *last = std::min(*first + grain, end);
    if (*first < end) return true;
  }
  return false;
}

KvPlace Plan::claim_kv(int layer, size_t keys, size_t values, int window) {
  size_t& claimed = claimed_[window > 0];
  const size_t first = claimed, second = kv(window).claim(first, keys, window);
  claimed = values ? kv(window).claim(second, values, window) : second;
  return kv_places_[layer] = {first, second};
}

KvPlace Plan::kv_of(int layer) const {
  const auto place = kv_places_.find(layer);
  if (place == kv_places_.end()) throw std::invalid_argument("attention: that layer stores no keys and values");
  return place->second;
}

size_t Plan::claim_state(size_t floats) {
  const size_t at = claimed_state_;
  claimed_state_ = states_->claim(at, floats);
  return at;
}

[[noreturn]] static void bad(const char* message) { throw std::invalid_argument(std::string("batch: ") + message); }

void Plan::check(const Batch& b) const {
  for (int i = 0; i < b.rows; i++) {
    if (b.tokens[i] < 0 || (vocab_ && b.tokens[i] >= vocab_)) bad("a token is outside the vocabulary");
    if (b.types && (b.types[i] < 0 || b.types[i] >= types_)) bad("the model has no such type of tokens");
    if (b.sequences[i] < 0 || b.sequences[i] >= b.table_rows) bad("a row's sequence has no block table");
    const int position = b.positions[i];
    if (position < 0 || position >= options_.context || position / kKvBlock >= b.table_cols)
      bad("a position is outside the context or its block table");
    const bool begins = i == 0 || b.sequences[i] != b.sequences[i - 1];
    if (!begins && position != b.positions[i - 1] + 1) bad("positions of a sequence are not in order");
    const int32_t* table = b.tables + (size_t)b.sequences[i] * b.table_cols;
    for (int j = begins ? 0 : position / kKvBlock; j <= position / kKvBlock; j++)
      if (table[j] < 0 || table[j] >= options_.kv_blocks) bad("a block table names no KV block");
  }
  if (b.limits) check_limits(b);
  if (b.window_ends) check_window_ends(b);
  if (b.logits > b.rows) bad("more logit rows than rows");
  for (int i = 0; i < b.logits; i++)
    if (b.logit_rows[i] < 0 || b.logit_rows[i] >= b.rows) bad("a logit row is not one of the rows");
}

// What a row may see must lie in its block table; that it was stored is the caller's promise.
void Plan::check_limits(const Batch& b) const {
  for (int i = 0; i < b.rows; i++) {
    const int limit = b.limits[i];
    if (limit < 0 || limit >= options_.context || limit / kKvBlock >= b.table_cols)
      bad("a limit is outside the context or its block table");
    const int32_t* table = b.tables + (size_t)b.sequences[i] * b.table_cols;
    for (int j = b.positions[i] / kKvBlock + 1; j <= limit / kKvBlock; j++)
      if (table[j] < 0 || table[j] >= options_.kv_blocks) bad("a block table names no KV block");
  }
}

// The blocks of a sequence's windows are those of its first row, which sees back the farthest.
void Plan::check_window_ends(const Batch& b) const {
  for (int i = 0, first = 0; i < b.rows; i++) {
    if (i && b.sequences[i] != b.sequences[i - 1]) first = i;
    if (b.window_ends[i] < b.window_ends[first] || b.window_ends[i] > b.positions[i])
      bad("a window ends behind its row, or before that of its sequence's first row");
  }
}

void Plan::check_states(const Step& step) const {
  std::vector<int> from, to;
  int last = -1;
  for (const auto& [row, slot] : step.stored) {
    if (row <= last || row >= step.batch.rows) bad("rows whose states are stored are not in order");
    if (slot < 0 || slot >= states_->slots()) bad("a state is stored in no slot");
    last = row, to.push_back(slot);
  }
  std::sort(to.begin(), to.end());
  if (std::adjacent_find(to.begin(), to.end()) != to.end()) bad("two states are stored in one slot");
  for (const auto& segment : step.segments)
    for (const auto& [row, slot] : step.stored)
      if (slot == segment.from && (row < segment.first || row >= segment.first + segment.rows))
        bad("a state is overwritten that another sequence goes on from");
}

void Plan::check_copies(const int32_t* sources, const int32_t* targets, size_t count) const {
  const auto bad = [](const char* message) { throw std::invalid_argument(std::string("copy_blocks: ") + message); };
  const auto is_block = [&](int32_t block) { return block >= 0 && block < options_.kv_blocks; };
  std::vector<bool> seen(options_.kv_blocks);
  for (size_t i = 0; i < count; i++) {
    if (!is_block(sources[i]) || !is_block(targets[i])) bad("an id names no KV block");
    seen[sources[i]] = true;
  }
  for (size_t i = 0; i < count; i++) {
    if (seen[targets[i]]) bad("a target is also a source, or named twice");
    seen[targets[i]] = true;
  }
}

void Plan::copy_blocks(const int32_t* sources, const int32_t* targets, size_t count) {
  check_copies(sources, targets, count);
  for (size_t i = 0; i < count; i++) {
    whole_->copy(sources[i], targets[i]);
    windowed_->copy(sources[i], targets[i]);
  }
}

void Plan::copy_windows(const int32_t* sources, const int32_t* targets, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (sources[i] < 0 || sources[i] >= options_.kv_blocks || targets[i] < -1 || targets[i] >= options_.kv_blocks)
      throw std::invalid_argument("copy_windows: an id names no KV block");
  for (size_t i = 0; i < count; i++) {
    if (targets[i] < 0)
      windowed_->release(sources[i]);
    else if (targets[i] != sources[i])
      windowed_->copy(sources[i], targets[i]);
  }
}

void Plan::copy_states(const int32_t* sources, const int32_t* targets, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (sources[i] < 0 || sources[i] >= states_->slots() || targets[i] < -1 || targets[i] >= states_->slots())
      throw std::invalid_argument("copy_states: a number names no slot");
  for (size_t i = 0; i < count; i++)
    if (targets[i] < 0) states_->release(sources[i]);
    else states_->copy(sources[i], targets[i]);
}

uint8_t* Plan::state_memory(int slot, bool find) {
  if (slot < 0 || slot >= states_->slots()) throw std::invalid_argument("state_memory: the number names no slot");
  if (find && !states_->is_empty()) states_->take(slot);
  return (uint8_t*)states_->state_at(slot);
}

std::vector<std::pair<uint8_t*, size_t>> Plan::block_memory(int block, bool windows) {
  if (block < 0 || block >= options_.kv_blocks) throw std::invalid_argument("block_memory: the id names no KV block");
  std::vector<std::pair<uint8_t*, size_t>> pieces;
  for (KvStore* store : {whole_.get(), windowed_.get()})
    if (uint8_t* memory = store->memory(block, windows)) pieces.push_back({memory, store->bytes()});
  return pieces;
}

// Buffers only grow. The logits' has a row for each that is wanted: one row can be a megabyte.
void Plan::reserve(int rows, int logits) {
  for (size_t i = 0; i < buffers_.size(); i++) {
    Buffer& b = buffers_[i];
    size_t n = (int)i == output_.buffer ? std::max(logits, 1) : std::max(rows, 1);
    if (b.quantised) n = std::max(n, (size_t)Step::kThreadLocalRows * pool->max_threads());
    if (b.memory.size() < n * b.row_bytes()) b.memory = Memory(n * b.row_bytes());
  }
  if (!scratch_.size()) scratch_ = Memory(sizeof(float) * scratch_floats_ * pool->max_threads());
}

Step Plan::step_of(const Batch& batch, bool whole) {
  segments_.clear(), stored_.clear();
  const auto block = [&](int row, int position) {
    return position < 0 ? -1 : batch.tables[(size_t)batch.sequences[row] * batch.table_cols + position / kKvBlock];
  };
  for (int i = 0; batch.sequences && i < batch.rows; i++) {
    if (i == 0 || batch.sequences[i] != batch.sequences[i - 1])
      segments_.push_back({i, 0, batch.sequences[i], block(i, batch.positions[i] - 1)});
    segments_.back().rows++;
  }
  for (int i = 0; i < batch.states; i++) stored_.push_back({batch.stored[2 * i], batch.stored[2 * i + 1]});
  for (const auto& s : segments_)
    if (const int last = s.first + s.rows - 1; !batch.stored) stored_.push_back({last, block(last, batch.positions[last])});
  return {*kernels, *pool, batch, buffers_, segments_, stored_, {(float*)scratch_.data(), scratch_floats_},
          whole ? prefetch_.begin(batch.rows, batch.logits) : Ahead::kNone, whole};
}

const float* Plan::run(const Batch& original, size_t first, size_t last) {
  check(original);
  if (first > last || last > ops_.size()) throw std::invalid_argument("run: the plan has no such ops");
  Batch batch = original;
  if (!batch.limits) batch.limits = batch.positions;
  if (!batch.window_ends) batch.window_ends = batch.positions;
  const PlainArithmetic plain;
  reserve(batch.rows, batch.logits);
  Step step = step_of(batch, last - first == ops_.size());
  whole_->prepare(step);
  windowed_->prepare(step);
  if (!states_->is_empty()) check_states(step);
  states_->prepare(step);
  if (input_.buffer >= 0 && first == 0) take(step, batch.given);
  return execute(step, first, last);
}

void Plan::take(const Step& step, const float* numbers) const {
  if (step.batch.rows) memcpy(step.row_at(input_, 0), numbers, sizeof(float) * step.batch.rows * width_of(input_));
}

const float* Plan::run_on(const float* numbers, int rows) {
  if (rows < 0 || input_.buffer < 0) throw std::invalid_argument("run_on: the plan takes no numbers");
  const PlainArithmetic plain;
  reserve(rows, rows);
  Batch batch{};
  batch.rows = batch.logits = rows;
  Step step = step_of(batch, true);
  take(step, numbers);
  return execute(step, 0, ops_.size());
}

const float* Plan::execute(Step& step, size_t first, size_t last) {
  for (size_t i = first; i < last; i++) ops_[i]->prepare(step);
  if (step.batch.rows == 0) return step.row_at(output_, 0);
  const auto started = std::chrono::steady_clock::now();
  const auto job = [&](int thread) {
    for (size_t i = first; i < last; i++) {
      ops_[i]->run(step, thread);
      if (upcoming_[i]) upcoming_[i]->prefetch(step, thread);
      if (ops_[i]->is_shared(step)) pool->barrier();
      if (streaming_[i] && thread == 0) ops_[i]->drop_pages();
    }
  };
  pool->run(std::ref(job));  // a copy of it would be allocated
  prefetch_.end(std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count());
  return step.row_at(output_, 0);
}

void Plan::check_numbers(View at, int rows, int width) const {
  const auto bad = [] { throw std::invalid_argument("the plan has no such numbers"); };
  if (at.buffer < 0 || at.buffer >= (int)buffers_.size()) bad();
  const Buffer& b = buffers_[at.buffer];
  if (b.quantised || at.column < 0 || width < 0 || at.column + width > b.width || rows < 0 ||
      b.memory.size() < (size_t)rows * b.row_bytes())
    bad();
}

void Plan::read(View from, int rows, int width, float* out) const {
  check_numbers(from, rows, width);
  const Buffer& b = buffers_[from.buffer];
  for (int i = 0; i < rows; i++)
    memcpy(out + (size_t)i * width, b.floats() + (size_t)i * b.width + from.column, sizeof(float) * width);
}

void Plan::write(View to, int rows, int width, const float* numbers) {
  check_numbers(to, rows, width);
  const Buffer& b = buffers_[to.buffer];
  for (int i = 0; i < rows; i++)
    memcpy(b.floats() + (size_t)i * b.width + to.column, numbers + (size_t)i * width, sizeof(float) * width);
}

}  // namespace cutaway
