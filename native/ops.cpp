#include "ops.h"

#include <string.h>

#include <algorithm>
#include <stdexcept>

#include "plain_arithmetic.h"

namespace cutaway {
namespace {

// Thread t's rows when n are dealt in contiguous ranges.
int begin_of(int n, const Step& step, int thread) { return (int)((int64_t)n * thread / step.pool.size()); }

}  // namespace

Embed::Embed(Plan& plan, Packed table, View out, By by) : table_(std::move(table)), out_(out), by_(by) {
  if (by == By::kToken) plan.set_vocab(table_.rows);
  if (by == By::kType) plan.set_types(table_.rows);
  if (by == By::kPosition && table_.rows < plan.context()) throw std::invalid_argument("fewer positions than the context");
}

void Embed::run(Step& step, int thread) {
  const Batch& b = step.batch;
  const int32_t* by = by_ == By::kToken ? b.tokens : by_ == By::kPosition ? b.positions : b.types;
  for (int i = begin_of(step.batch.rows, step, thread); i < begin_of(step.batch.rows, step, thread + 1); i++)
    table_.decode_row(by ? by[i] : 0, step.row_at(out_, i));
}

void StoredTable::look_up(std::span<const int32_t> tokens, size_t row_bytes, uint8_t* out) const {
  std::vector<int32_t> rows(tokens.begin(), tokens.end());
  for (int32_t& row : rows)
    if ((size_t)row >= bytes / row_bytes) row = 0;
  read(rows, row_bytes, out);
}

EmbedStored::EmbedStored(StoredTable table, int cols, View out)
    : table_(std::move(table)), cols_(cols), out_(out), row_bytes_(source_bytes(table_.format, 1, cols)) {
  if (table_.bytes < row_bytes_) throw std::invalid_argument("a table without rows");
}

void EmbedStored::prepare(Step& step) {  // before the threads start, since it may throw
  if (rows_.size() < step.batch.rows * row_bytes_) rows_.resize(step.batch.rows * row_bytes_);
  table_.look_up({step.batch.tokens, (size_t)step.batch.rows}, row_bytes_, rows_.data());
}

void EmbedStored::run(Step& step, int thread) {
  for (int i = begin_of(step.batch.rows, step, thread); i < begin_of(step.batch.rows, step, thread + 1); i++)
    decode_stored_row(table_.format, rows_.data() + i * row_bytes_, cols_, step.row_at(out_, i));
}

void Gather::run(Step& step, int thread) {
  for (int i = thread; i < step.batch.logits; i += step.pool.size())
    memcpy(step.row_at(out_, i), step.row_at(in_, step.batch.logit_rows[i]), sizeof(float) * width_);
}

void Reorder::run(Step& step, int thread) {
  const int rows = count(step, rows_);
  for (int i = begin_of(rows, step, thread); i < begin_of(rows, step, thread + 1); i++) {
    const float* x = step.row_at(in_, i);
    float* y = step.row_at(out_, i);
    for (size_t k = 0; k < order_.size(); k++) y[k] = x[order_[k]];
  }
}

void Join::run(Step& step, int thread) {
  const int rows = count(step, rows_);
  for (int i = begin_of(rows, step, thread); i < begin_of(rows, step, thread + 1); i++) {
    float* y = step.row_at(out_, i);
    for (int g = 0; g < groups_; g++)
      for (const Part& part : {a_, b_}) {
        memcpy(y, step.row_at(part.from, i) + (size_t)g * part.size, sizeof(float) * part.size);
        y += part.size;
      }
  }
}

void Rotate::prepare(Step& step) {
  for (int i = 0; i < step.batch.rows; i++) angles_->reach(step.batch.positions[i]);
}

void Rotate::run(Step& step, int thread) {
  for (int i = thread; i < step.batch.rows; i += step.pool.size()) {
    memcpy(step.row_at(out_, i), step.row_at(in_, i), sizeof(float) * heads_ * head_dim_);
    for (int h = 0; h < heads_; h++) angles_->rotate(step.row_at(out_, i) + h * head_dim_, step.batch.positions[i]);
  }
}

Softmax::Softmax(Args args) : args_(args) {
  if (args.group <= 0 || args.width % args.group) throw std::invalid_argument("a softmax has whole groups");
}

void Softmax::run(Step& step, int thread) {
  const auto& [of, in, width, group, out] = args_;
  const int rows = count(step, of);
  for (int i = begin_of(rows, step, thread); i < begin_of(rows, step, thread + 1); i++)
    for (int at = 0; at < width; at += group) step.k.softmax(step.row_at(in, i) + at, group, step.row_at(out, i) + at);
}

Normalise::Normalise(Rows rows, View in, int width, Norm norm, Places out)
    : rows_(rows), in_(in), width_(width), norm_(std::move(norm)), out_(out) {
  const int group = norm_.group;
  if (!norm_.weight.empty() && (group <= 0 || width % group || ((int)norm_.weight.size() != group && (int)norm_.weight.size() != width)))
    throw std::invalid_argument("a norm has one weight for each number of a group, or of a row");
  if (!norm_.bias.empty() && norm_.bias.size() != norm_.weight.size())
    throw std::invalid_argument("a norm has as many biases as weights");
}

bool Normalise::is_shared(const Step& step) const {
  return out_.floats.buffer >= 0 || !step.is_thread_local(count(step, rows_));
}

void Normalise::normalise(const Step& step, const float* x, float* y) const {
  const float *weight = norm_.weight.data(), *bias = norm_.bias.data();
  const int apart = (int)norm_.weight.size() == width_ ? 1 : 0;  // whether each group has its own weights
  for (int i = 0; i < width_; i += norm_.group)
    if (norm_.limit > 0) step.k.clip_norm(x + i, weight + i * apart, norm_.limit, norm_.group, y + i);
    else if (norm_.bias.empty()) step.k.rms_norm(x + i, weight + i * apart, norm_.eps, norm_.group, y + i);
    else step.k.layer_norm(x + i, weight + i * apart, bias + i * apart, norm_.eps, norm_.group, y + i);
}

void round_activations(const Kernels& k, const float* x, int cols, float* out) {
  const PlainArithmetic plain;
  ActBlock block;
  for (int i = 0; i < cols; i += kQuant) {
    k.quantise(x + i, kQuant, {&block, 1});
    for (int j = 0; j < kQuant; j++) out[i + j] = block.d * (float)block.q[j];
  }
}

void Normalise::run(Step& step, int thread) {
  const int rows = count(step, rows_);
  const bool all = !is_shared(step);
  const int first = all ? 0 : begin_of(rows, step, thread), last = all ? rows : begin_of(rows, step, thread + 1);
  for (int i = first; i < last; i++) {
    const float* x = step.row_at(in_, i);
    if (!norm_.weight.empty()) {
      float* y = out_.floats.buffer < 0 ? step.scratch(thread) : step.row_at(out_.floats, i);
      normalise(step, x, y);
      x = y;
    }
    if (out_.act < 0) continue;
    step.k.quantise(x, width_, step.act(out_.act, i, thread, rows));
    // Floats are for everyone, so one thread made this row: hand every thread its quant blocks.
    for (int t = 0; !all && step.is_thread_local(rows) && t < step.pool.size(); t++)
      if (t != thread)
        copy(step.act(out_.act, i, thread, rows), width_ / kQuant, step.act(out_.act, i, t, rows));
  }
}

void Magnitude::run(Step& step, int thread) {
  const auto& [of, in, width, is_centred, out] = args_;
  const int rows = count(step, of);
  for (int i = begin_of(rows, step, thread); i < begin_of(rows, step, thread + 1); i++)
    *step.row_at(out, i) = step.k.root_mean_square(step.row_at(in, i), is_centred, width);
}

void Weigh::run(Step& step, int thread) {
  const auto& [of, in, weight, out] = args_;
  const int rows = count(step, of);
  for (int i = begin_of(rows, step, thread); i < begin_of(rows, step, thread + 1); i++)
    step.k.map(Map::mul, step.row_at(in, i), weight.data(), 0, (int)weight.size(), step.row_at(out, i));
}

OwnValue::OwnValue(Args args) : args_(args) {
  if (args.size <= 0 || args.width % args.size) throw std::invalid_argument("a row is no whole number of heads");
}

void OwnValue::run(Step& step, int thread) {
  const auto& [of, a, b, v, y, width, size, out] = args_;
  const int rows = count(step, of);
  for (int i = begin_of(rows, step, thread); i < begin_of(rows, step, thread + 1); i++)
    for (int at = 0; at < width; at += size)
      step.k.own_value(step.row_at(a, i) + at, step.row_at(b, i) + at, step.row_at(v, i) + at, step.row_at(y, i) + at, size,
                       step.row_at(out, i) + at);
}

// Few rows: deal parts of them, so that the threads share a row of logits.
void Elementwise::run(Step& step, int thread) {
  constexpr int part = 1024;
  const auto& [of, kind, a, b, number, width, out, spread] = args_;
  float spread_row[part];
  const int rows = count(step, of), per_row = (width + part - 1) / part;
  for (int i = begin_of(rows * per_row, step, thread); i < begin_of(rows * per_row, step, thread + 1); i++) {
    const int row = i / per_row, at = i % per_row * part;
    const float* second = b.buffer < 0 ? nullptr : step.row_at(b, row) + at;
    const int n = std::min(part, width - at);
    if (spread) std::fill_n(spread_row, n, *step.row_at(a, row));
    step.k.map(kind, spread ? spread_row : step.row_at(a, row) + at, second, number, n, step.row_at(out, row) + at);
  }
}

Linear::Linear(Rows rows, Places in, Finish finish, std::vector<Part> parts)
    : rows_(rows), in_(in), finish_(finish), parts_(std::move(parts)) {
  for (const auto& part : parts_) {
    if (is_float(part.weight.format) ? in_.floats.buffer < 0 : in_.act < 0)
      throw std::invalid_argument("a linear op lacks the kind of input that its weights read");
    if (part.column < 0 || (!is_float(part.weight.format) && part.column % kQuant))
      throw std::invalid_argument("a matrix reads whole quant blocks");
    if (!part.bias.empty() && (int)part.bias.size() != part.weight.rows)
      throw std::invalid_argument("a matrix has as many biases as rows");
    begins_.push_back(panels_);
    panels_ += part.weight.panels();
  }
  if (finish_.gate) {
    if (parts_.size() != 2 || parts_[0].weight.rows != parts_[1].weight.rows)
      throw std::invalid_argument("a gate needs two matrices of one shape");
    panels_ = parts_[0].weight.panels();
  }
}

// Few rows: deal panels, so that each thread reads its own part of the weights in one stream. Many:
// deal rows, so that a thread's activations stay in its own cache from one matrix to the next.
void Linear::prepare(Step& step) {
  const int threads = step.pool.size(), rows = count(step, rows_);
  rows_per_item_ = 0;
  if (rows >= 64 * threads) {
    rows_per_item_ = std::clamp((rows / (2 * threads) + 15) / 16 * 16, 32, kStretch);
    return queue_.deal((rows + rows_per_item_ - 1) / rows_per_item_, threads);
  }
  queue_.deal(panels_, streaming_ ? 1 : threads);
}

void Linear::run(Step& step, int thread) {
  const int rows = count(step, rows_), grain = std::max(1, panels_ / (step.pool.size() * 8));
  for (int first, last; queue_.take(thread, rows_per_item_ ? 1 : grain, &first, &last);)
    if (rows_per_item_) panels(step, thread, 0, panels_, first * rows_per_item_, std::min(rows, last * rows_per_item_));
    else
      for (int row = 0; row < rows; row += kStretch)
        panels(step, thread, first, last, row, std::min(rows, row + kStretch));
}

void Linear::prefetch(const Step& step, int thread) const {
  constexpr int lines = 256;  // what memory delivers while the threads meet and take breath
  if (streaming_ || rows_per_item_ || count(step, rows_) == 0) return;
  int panel = queue_.begin(thread);
  const Part& part = part_of(panel);
  const uint8_t* p = part.weight.data + panel * part.weight.panel;
  for (int i = 0; i < lines; i++) __builtin_prefetch(p + 64 * i, 0, 2);
}

size_t Linear::weight_bytes() const {
  size_t bytes = 0;
  for (const auto& part : parts_) bytes += part.weight.bytes();
  return bytes;
}

void Linear::drop_pages() const {
  for (const auto& part : parts_) part.weight.owner->drop_pages(part.weight.data, part.weight.bytes());
}

const Linear::Part& Linear::part_of(int& panel) const {
  if (finish_.gate) return parts_[0];
  const size_t i = std::upper_bound(begins_.begin(), begins_.end(), panel) - begins_.begin() - 1;
  panel -= begins_[i];
  return parts_[i];
}

// How many panels from this one on are multiplied together; 0: each by itself.
int Linear::panels_together(const Step& step, const Part& part, int panel, int limit, int rows) const {
  if (finish_.gate || rows < kFloatRows || !step.k.floats[part.weight.format]) return 0;
  return std::min({limit, part.weight.panels() - panel, kFloatPanels});
}

// A whole number of kFloatRows rows.
void Linear::together(Step& step, const Part& part, int panel, int count, int row, int rows) {
  alignas(64) float out[kFloatPanels * kStretch * kLanes];
  const Packed& w = part.weight;
  const FloatPanels m{w.data + panel * w.panel, w.panel, count, out, kStretch * kLanes};
  for (int i = 0; i < count; i++) ask_for(step, part, panel + i, row, rows);
  step.k.floats[w.format](m, w.cols, step.row_at(in_.floats, row) + part.column, step.width(in_.floats.buffer), rows);
  for (int i = 0; i < count; i++) {
    amend(part, panel + i, rows, out + i * m.out_apart);
    finish(step, part, panel + i, row, rows, out + i * m.out_apart);
  }
}

// Panels [first, last) of rows [begin, end).
void Linear::panels(Step& step, int thread, int first, int last, int begin, int end) {
  alignas(64) float out[kStretch * kLanes], up[kStretch * kLanes];
  for (int p = first, done = first; p < last; p++) {
    int panel = p;
    const Part& part = part_of(panel);
    const int whole = (end - begin) / kFloatRows * kFloatRows;
    if (p == done)
      if (const int count = panels_together(step, part, panel, last - p, end - begin))
        together(step, part, panel, count, begin, whole), done += count;
    const int from = done > p ? begin + whole : begin;
    done = std::max(done, p + 1);
    for (int row = from; row < end;) {
      const int tile_rows = kTileRows[tile_of(end - row)];
      const int rows = is_many(step, part, end - row) ? (end - row) / tile_rows * tile_rows : tile_rows;
      const Ahead ahead = row == from ? step.ahead : Ahead::kNone;  // then the panel is in the cache
      ask_for(step, part, panel, row, rows);
      compute(step, thread, part, panel, row, rows, ahead, out);
      if (finish_.gate) {
        compute(step, thread, parts_[1], panel, row, rows, ahead, up);
        step.k.map(*finish_.gate, out, up, 0, rows * kLanes, out);
      }
      finish(step, part, panel, row, rows, out);
      row += rows;
    }
  }
}

// Whether there are enough rows for unpacking a panel to pay.
bool Linear::is_many(const Step& step, const Part& part, int rows) {
  return rows >= step.k.tiles_from && step.k.tiles[part.weight.format];
}

// Multiply one tile, or several of 16 rows.
void Linear::compute(Step& step, int thread, const Part& part, int panel, int row, int rows, Ahead ahead,
                     float* out) const {
  const Packed& w = part.weight;
  const bool floats = is_float(w.format);
  const uint8_t* p = w.data + panel * w.panel;
  const int n = floats ? w.cols : w.cols / kQuant, tile = tile_of(rows), all = count(step, rows_);
  const size_t stride = floats ? step.width(in_.floats.buffer) : 0;
  const auto acts = [&](int at) {
    const ActRow x = step.act(in_.act, at, thread, all);
    return x.first + (size_t)(part.column / kQuant) * x.apart;
  };
  if (is_many(step, part, rows)) {
    const size_t apart = step.width(in_.act) / kQuant * kTileRows[0];
    step.k.tiles[w.format](p, n, {acts(row), apart, rows / kTileRows[0]}, ahead, out);
  } else {
    for (int r = 0; r < rows; r += kTileRows[tile], ahead = Ahead::kNone) {
      const void* x = floats ? (const void*)(step.row_at(in_.floats, row + r) + part.column) : acts(row + r);
      step.k.tile[w.format][tile](p, n, x, stride, ahead, out + r * kLanes);
    }
  }
  amend(part, panel, rows, out);
}

// Written so that compilers turn it into vectors, whether or not the two overlap.
static void add_lanes(float* y, const float* x) {
  float sum[kLanes];
  for (int i = 0; i < kLanes; i++) sum[i] = y[i] + x[i];
  memcpy(y, sum, sizeof sum);
}

// What follows the products: a factor of all, and a bias.
void Linear::amend(const Part& part, int panel, int rows, float* out) {
  if (part.weight.factor != 1)
    for (int i = 0; i < rows * kLanes; i++) out[i] *= part.weight.factor;
  if (part.bias.empty()) return;
  alignas(64) float bias[kLanes] = {};  // 0 of rows that are none
  std::copy_n(&part.bias[panel * kLanes], std::min(kLanes, part.weight.rows - panel * kLanes), bias);
  for (int r = 0; r < rows; r++) add_lanes(out + r * kLanes, bias);
}

// The lines that finish will write, while the products are computed: those of many rows are in no near cache.
void Linear::ask_for(const Step& step, const Part& part, int panel, int row, int rows) const {
  for (int r = 0; r < rows; r++) __builtin_prefetch(step.row_at(part.out, row + r) + panel * kLanes, 1);
}

void Linear::finish(Step& step, const Part& part, int panel, int row, int rows, const float* out) const {
  const int n = std::min(kLanes, part.weight.rows - panel * kLanes);
  for (int r = 0; r < rows; r++) {
    float* y = step.row_at(part.out, row + r) + panel * kLanes;
    const float* x = out + r * kLanes;
    if (n < kLanes)
      for (int i = 0; i < n; i++) y[i] = finish_.adds ? y[i] + x[i] : x[i];
    else if (finish_.adds)
      add_lanes(y, x);
    else
      memcpy(y, x, kLanes * sizeof *y);
  }
}

}  // namespace cutaway
