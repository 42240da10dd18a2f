#include <math.h>
#include <string.h>

#include <algorithm>
#include <stdexcept>

#include "ops.h"

namespace cutaway {
namespace {
constexpr int kUsualRows = 6;  // where there are more: 24 sums of 16 numbers suit 32 registers
}  // namespace

size_t key_bytes(KvFormat f, int kv_heads, int head_dim) { return (size_t)kv_heads * key_head(f, head_dim).end; }
size_t value_bytes(KvFormat f, int kv_heads, int value_dim) { return (size_t)kv_heads * value_head(f, value_dim).end; }

static const AttendShape& check(const AttendShape& s) {
  if (s.heads <= 0 || s.kv_heads <= 0 || s.head_dim <= 0 || s.window < 0 || s.reach < 0 || (s.chunked && !s.window))
    throw std::invalid_argument("attention: these heads are not supported");
  return s;
}

Attend::Attend(Plan& plan, Views at, AttendShape s, Rotation rotation, std::vector<float> sinks, std::vector<float> bias,
               Relative relative, View row_sinks)
    : at_(at), shape_(check(s)), back_(s.reach ? s.reach + 1 : s.window),
      group_(s.heads / s.kv_heads), width_(s.value_dim ? s.value_dim : s.head_dim), stride_(padded_dim(width_)),
      formats_(plan.kv_formats()), kv_(plan.kv(s.window)),
      place_(s.reads >= 0 ? plan.kv_of(s.reads)
                          : plan.claim_kv(s.layer, key_bytes(formats_.keys, s.kv_heads, s.head_dim),
                                          s.latent() ? 0 : value_bytes(formats_.values, s.kv_heads, width_),
                                          s.window)),
      angles_(plan.angles(std::move(rotation))), sinks_(std::move(sinks)), bias_(std::move(bias)),
      biases_((int)bias_.size() / s.heads), relative_(std::move(relative)), row_sinks_(row_sinks) {
  if (!bias_.empty() && (bias_.size() % s.heads || biases_ < 2 * (plan.context() + kKvBlock) - 1))
    throw std::invalid_argument("attention: a bias for each distance of the context is needed");
  const auto& rows = relative_.rows;
  if (!rows.empty() && (group_ != 1 || (int)rows.size() < 2 * plan.context() - 1 || rows.size() % 2 == 0 ||
                        *std::min_element(rows.begin(), rows.end()) < 0 ||
                        *std::max_element(rows.begin(), rows.end()) >= relative_.count))
    throw std::invalid_argument("attention: a row for each distance of the context is needed");
  if (s.latent() && (s.value_first % 16 || width_ % 16 || s.value_first + width_ > s.head_dim))
    throw std::invalid_argument("attention: values are whole 16 numbers of the keys");
  if (s.heads % s.kv_heads || s.head_dim % 2 || s.head_dim > kMostHeadDim || width_ % 2 || width_ > kMostHeadDim ||
      (int)angles_->rotation().frequencies.size() > s.head_dim / 2 || (!sinks_.empty() && (int)sinks_.size() != s.heads))
    throw std::invalid_argument("attention: these heads are not supported");
}

// The last position that a row sees.
int Attend::limit(const Batch& b, int row) const {
  if (!shape_.reach && !shape_.causal) return b.limits[row];
  return std::min(b.limits[row], b.positions[row] + shape_.reach);
}

// The first position that a row sees whose window ends at one; 0 or below: all.
int Attend::first_seen(int end) const {
  if (shape_.chunked) return end / shape_.window * shape_.window;
  return back_ ? end - back_ + 1 : 0;
}

// The largest limit of some rows. A limit before the window would leave a row nothing to see.
int Attend::last_seen(const Batch& b, int first_row, int last_row) const {
  int last = -1;
  for (int i = first_row; i <= last_row; i++) {
    if (b.limits[i] < first_seen(b.window_ends[i]))
      throw std::invalid_argument("batch: a limit lies before its row's window");
    last = std::max(last, limit(b, i));
  }
  return last;
}

// What a key says of distances is read from its row, so that all rows of a text must be there.
void Attend::check_whole(const Step& step) const {
  const Batch& b = step.batch;
  for (const auto& segment : step.segments)
    for (int i = 0; i < segment.rows; i++)
      if (b.positions[segment.first + i] != i || limit(b, segment.first + i) >= segment.rows)
        throw std::invalid_argument("batch: this model reads a text in one step, from its first token on");
}

void Attend::prepare(Step& step) {
  const Batch& b = step.batch;
  if (!relative_.rows.empty()) check_whole(step);
  const int farthest = b.rows ? *std::max_element(b.positions, b.positions + b.rows) : -1;
  angles_->reach(farthest);
  tiles_.clear();
  int last = -1;
  for (int s = 0; s < (int)step.segments.size(); s++) {
    const auto& segment = step.segments[s];
    const int rows = segment.rows * group_;
    for (int first = 0, n; first < rows; first += n) {
      n = rows - first <= step.k.attend_rows ? rows - first : std::min(kUsualRows, step.k.attend_rows);
      const int seen = last_seen(b, segment.first + first / group_, segment.first + (first + n - 1) / group_);
      tiles_.push_back({s, first, n, seen});
      last = std::max(last, seen);
    }
  }
  chunks_ = last / kKvChunk + 1;
  const int items = (int)tiles_.size() * shape_.kv_heads;
  split_ = chunks_ > 1 && items < 4 * step.pool.size();
  queue_.deal(split_ ? items * chunks_ : items, step.pool.size());
  if (split_) partials_.resize((size_t)items * chunks_ * partial());
}

// Everything of one row that belongs to one KV head: its query heads, its key, its value. Where a head's numbers
// end within 16, the last is repeated, which changes no smallest and no largest of them.
void Attend::store_row(Step& step, int row, int kv_head) {
  const Batch& b = step.batch;
  const int position = b.positions[row], d = shape_.head_dim, token = position % kKvBlock;
  for (int g = 0; g < group_; g++) angles_->rotate(step.row_at(at_.q, row) + (kv_head * group_ + g) * d, position);
  if (shape_.reads >= 0) return;
  uint8_t* block = (uint8_t*)kv_.block_at(kv_.table(step, b.sequences[row])[position / kKvBlock]);
  float wide[kMostHeadDim];
  memcpy(wide, step.row_at(at_.k, row) + kv_head * d, sizeof(float) * d);
  angles_->rotate(wide, position);
  std::fill(wide + d, wide + padded_dim(d), wide[d - 1]);
  store_key(step.k, formats_.keys, wide, d, block + place_.keys + key_bytes(formats_.keys, kv_head, d), token);
  if (shape_.latent()) return;
  const int n = width_;
  memcpy(wide, step.row_at(at_.v, row) + kv_head * n, sizeof(float) * n);
  std::fill(wide + n, wide + stride_, wide[n - 1]);
  store_value(step.k, formats_.values, wide, n, block + place_.values + value_bytes(formats_.values, kv_head, n), token);
}

void Attend::run(Step& step, int thread) {
  const int threads = step.pool.size(), heads = shape_.kv_heads, tiles = (int)tiles_.size();
  const int stores = step.batch.rows * heads;
  for (int i = (int)((int64_t)stores * thread / threads); i < (int)((int64_t)stores * (thread + 1) / threads); i++)
    store_row(step, i / heads, i % heads);
  step.pool.barrier();
  const int chunks = split_ ? chunks_ : 1;
  float *local = step.scratch(thread), *sum = local + partial();
  for (int item, end; queue_.take(thread, 1, &item, &end);) {
    const int chunk = item % chunks, head = item / chunks % heads;
    const Tile& tile = tiles_[item / chunks / heads];
    float* to = split_ ? partials_.data() + (size_t)item * partial() : local;
    attend_tile(step, tile, head, split_ ? chunk : 0, split_ ? chunk + 1 : chunks_, to);
    for (int r = 0; !split_ && r < tile.rows; r++) finish_row(step, tile, head, r, to, 1, sum);
  }
  if (!split_) return;
  step.pool.barrier();
  for (int i = thread; i < tiles * heads * kMostRows; i += threads) {
    const int r = i % kMostRows, head = i / kMostRows % heads, t = i / kMostRows / heads;
    if (r >= tiles_[t].rows) continue;
    const float* first = partials_.data() + (size_t)(t * heads + head) * chunks * partial();
    finish_row(step, tiles_[t], head, r, first, chunks, sum);
  }
}

// Chunks [first, last) folded into `run`, a partial result: peaks of the query rows, totals, outputs.
void Attend::attend_tile(Step& step, const Tile& tile, int kv_head, int first, int last, float* run) const {
  const auto& segment = step.segments[tile.segment];
  const Batch& b = step.batch;
  float q[kMostHeadDim * kMostRows];
  int32_t position[kMostRows], from[kMostRows], until[kMostRows];
  for (int r = 0; r < tile.rows; r++) {
    const int row = segment.first + (tile.first + r) / group_, g = (tile.first + r) % group_;
    const float* query = step.row_at(at_.q, row) + (kv_head * group_ + g) * shape_.head_dim;
    for (int d = 0; d < shape_.head_dim; d++) q[d * tile.rows + r] = query[d];
    position[r] = b.positions[row], from[r] = first_seen(b.window_ends[row]), until[r] = limit(b, row);
  }
  const int seen = std::max(0, from[0]) / kKvBlock * kKvBlock;
  first = std::max(first, seen / kKvChunk), last = std::min(last, tile.last / kKvChunk + 1);
  if (first >= last) {
    std::fill(run, run + kMostRows, -INFINITY);
    std::fill(run + kMostRows, run + partial(), 0.0f);
  }
  float next[kMostRows * (kMostHeadDim + 2)], related[kMostRows][kKvChunk];
  const float* bias[kMostRows];
  for (int r = 0; !bias_.empty() && r < tile.rows; r++)
    bias[r] = bias_.data() + (size_t)(kv_head * group_ + (tile.first + r) % group_) * biases_ + biases_ / 2 - position[r];
  const auto* kv = (const uint8_t*)kv_.block_at(0);
  AttendChunk c{q, position, from, until, tile.rows, shape_.head_dim, stride_, 0, 0, 0, tile.last,
                kv_.table(step, segment.sequence), formats_.keys, formats_.values,
                kv + place_.keys + key_bytes(formats_.keys, kv_head, shape_.head_dim),
                shape_.latent() ? nullptr : kv + place_.values + value_bytes(formats_.values, kv_head, width_),
                shape_.value_first, width_, kv_.bytes(),
                shape_.scale, shape_.softcap, nullptr, nullptr, nullptr};
  if (!bias_.empty()) c.bias = bias;
  if (b.hidden_from) c.hidden_from = b.hidden_from + (size_t)segment.sequence * b.table_cols * kKvBlock;
  for (int chunk = first; chunk < last; chunk++) {
    float* to = chunk == first ? run : next;
    c.start = chunk * kKvChunk;
    c.first = std::max(c.start, seen);
    c.end = std::min(c.start + kKvChunk, tile.last + 1);
    c.peak = to, c.total = to + kMostRows, c.out = to + 2 * kMostRows;
    if (relative_.count) {
      if (relative_.rows.empty()) look_back(step, tile, kv_head, c, related);
      else relate(step, tile, kv_head, c, related);
      for (int r = 0; r < tile.rows; r++) bias[r] = related[r] - c.start;
      c.bias = bias;
    }
    step.k.attend(c);
    if (chunk > first) step.k.merge(tile.rows, run, run + kMostRows, run + 2 * kMostRows, c.peak, c.total, c.out, stride_);
  }
}

// What is added to the scores of a chunk's tokens; beyond its end, where nothing is seen, 0.
void Attend::relate(const Step& step, const Tile& tile, int head, const AttendChunk& chunk, float (*to)[kKvChunk]) const {
  const int first = step.segments[tile.segment].first, count = relative_.count;
  const int32_t* rows = relative_.rows.data() + relative_.rows.size() / 2;
  const float* query[kMostRows];
  for (int r = 0; r < tile.rows; r++) {
    query[r] = step.row_at(relative_.of_query, first + tile.first + r) + head * count;
    std::fill(to[r], to[r] + kKvChunk, 0.0f);
  }
  for (int t = chunk.first; t < chunk.end; t++) {
    const float* key = step.row_at(relative_.of_key, first + t) + head * count;
    for (int r = 0; r < tile.rows; r++) {
      const int at = rows[chunk.position[r] - t];
      to[r][t - chunk.start] = (query[r][at] + key[at]) * shape_.scale;
    }
  }
}

// The same where only the query says something of a distance.
void Attend::look_back(const Step& step, const Tile& tile, int kv_head, const AttendChunk& chunk,
                       float (*to)[kKvChunk]) const {
  const int first = step.segments[tile.segment].first, count = relative_.count;
  for (int r = 0; r < tile.rows; r++) {
    const int row = first + (tile.first + r) / group_, head = kv_head * group_ + (tile.first + r) % group_;
    const float* query = step.row_at(relative_.of_query, row) + (size_t)head * count;
    std::fill(to[r], to[r] + kKvChunk, 0.0f);
    const int from = std::max(chunk.first, chunk.position[r] - count + 1), end = std::min(chunk.end, chunk.position[r] + 1);
    for (int t = from; t < end; t++) to[r][t - chunk.start] = query[chunk.position[r] - t];
  }
}

// Fold a row's partial results in order, into `sum`, then its head's sink, and divide.
void Attend::finish_row(Step& step, const Tile& tile, int kv_head, int r, const float* partials, int chunks,
                        float* sum) const {
  const auto& segment = step.segments[tile.segment];
  const int row = segment.first + (tile.first + r) / group_, g = (tile.first + r) % group_;
  float* out = step.row_at(at_.out, row) + (kv_head * group_ + g) * width_;
  std::copy_n(partials + 2 * kMostRows + r * stride_, stride_, sum);
  float peak = partials[r], total = partials[kMostRows + r];
  for (int chunk = 1; chunk < chunks; chunk++) {
    const float* next = partials + (size_t)chunk * partial();
    step.k.merge(1, &peak, &total, sum, next + r, next + kMostRows + r, next + 2 * kMostRows + r * stride_, stride_);
  }
  const int head = kv_head * group_ + g;
  const float* sink = row_sinks_.buffer >= 0 ? step.row_at(row_sinks_, row) + head : sinks_.empty() ? nullptr : &sinks_[head];
  if (sink) {  // the last chunk of all, of one token without a value
    alignas(64) static constexpr float kNothing[kMostHeadDim] = {}, kOne = 1;
    step.k.merge(1, &peak, &total, sum, sink, &kOne, kNothing, stride_);
  }
  step.k.divide(sum, total, width_, out);
}

}  // namespace cutaway
