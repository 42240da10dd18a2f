#include "ops.h"

#include <string.h>

#include <algorithm>
#include <stdexcept>

namespace cutaway {
namespace {

int count(const Step& step, Rows rows) {
  return rows == Rows::kAll ? step.batch.rows : (int)step.logit_rows.size();
}

}  // namespace

void Embed::run(Step& step, int thread) {
  for (int i = thread; i < step.batch.rows; i += step.pool.size())
    table_.decode_row(step.batch.tokens[i], step.at(out_, i));
}

void Gather::run(Step& step, int thread) {
  for (int i = thread; i < (int)step.logit_rows.size(); i += step.pool.size())
    memcpy(step.at(out_, i), step.at(in_, step.logit_rows[i]), sizeof(float) * width_);
}

bool Normalise::is_shared(const Step& step) const {
  return out_.buffer >= 0 || !step.is_private(count(step, rows_));
}

void Normalise::run(Step& step, int thread) {
  const int rows = count(step, rows_);
  const bool all = !is_shared(step);
  std::vector<float> scratch(out_.buffer < 0 ? width_ : 0);
  for (int i = all ? 0 : thread; i < rows; i += all ? 1 : step.pool.size()) {
    const float* x = step.at(in_, i);
    if (!weight_.empty()) {
      float* y = out_.buffer < 0 ? scratch.data() : step.at(out_, i);
      step.k.rms_norm(x, weight_.data(), eps_, width_, y);
      x = y;
    }
    if (act_ < 0) continue;
    step.k.quantise(x, width_, step.act(act_, i, thread, rows));
    // Floats are for everyone, so one thread made this row: hand every thread its quant blocks.
    for (int t = 0; !all && step.is_private(rows) && t < step.pool.size(); t++)
      if (t != thread)
        memcpy(step.act(act_, i, t, rows), step.act(act_, i, thread, rows), sizeof(ActBlock) * (width_ / kQuant));
  }
}

Linear::Linear(Rows rows, View in, int act, Finish finish, std::vector<Part> parts)
    : rows_(rows), in_(in), act_(act), finish_(finish), parts_(std::move(parts)) {
  for (const auto& part : parts_) {
    if (is_float(part.weight.format) ? in_.buffer < 0 : act_ < 0)
      throw std::invalid_argument("a linear op lacks the kind of input that its weights read");
    panels_ += part.weight.panels();
  }
  if (finish_ == Finish::kSiluMul) {
    if (parts_.size() != 2 || parts_[0].weight.rows != parts_[1].weight.rows)
      throw std::invalid_argument("silu_mul needs two matrices of one shape");
    panels_ = parts_[0].weight.panels();
  }
}

void Linear::prepare(Step& step) {
  const int threads = step.pool.size();
  if (!cursors_) cursors_ = std::make_unique<Cursor[]>(step.pool.most());
  for (int t = 0; t < threads; t++) cursors_[t].next.store(begin(t, threads), std::memory_order_relaxed);
  grain_ = std::max(1, panels_ / (threads * 8));
}

void Linear::run(Step& step, int thread) {
  const int threads = step.pool.size();
  for (int i = 0; i < threads; i++) {
    const int owner = (thread + i) % threads, last = begin(owner + 1, threads);
    for (int first; (first = cursors_[owner].next.fetch_add(grain_, std::memory_order_relaxed)) < last;)
      panels(step, thread, first, std::min(first + grain_, last));
  }
}

void Linear::prefetch(const Step& step, int thread) const {
  constexpr int lines = 256;  // what memory delivers while the threads meet and take breath
  int panel = begin(thread, step.pool.size());
  const Part& part = part_of(panel);
  const uint8_t* p = part.weight.data + panel * part.weight.panel;
  for (int i = 0; i < lines; i++) __builtin_prefetch(p + 64 * i, 0, 2);
}

const Linear::Part& Linear::part_of(int& panel) const {
  const Part* part = parts_.data();
  if (finish_ != Finish::kSiluMul)
    while (panel >= part->weight.panels()) panel -= part++->weight.panels();
  return *part;
}

// Rows in stretches that stay in the cache, so that a stretch meets every panel while it is there.
void Linear::panels(Step& step, int thread, int first, int last) {
  constexpr int stretch = 128;
  alignas(64) float out[8 * kLanes], up[8 * kLanes];
  const int rows = count(step, rows_);
  for (int begin = 0; begin < rows; begin += stretch)
    for (int p = first; p < last; p++) {
      int panel = p;
      const Part* part = &part_of(panel);
      for (int row = begin, end = std::min(rows, begin + stretch); row < end;) {
        int tile = 0;
        while (kTileRows[tile] > end - row) tile++;
        compute(step, thread, *part, panel, row, tile, out);
        if (finish_ == Finish::kSiluMul) {
          compute(step, thread, parts_[1], panel, row, tile, up);
          step.k.silu_mul(out, up, kTileRows[tile] * kLanes, out);
        }
        finish(step, *part, panel, row, kTileRows[tile], out);
        row += kTileRows[tile];
      }
    }
}

void Linear::compute(Step& step, int thread, const Part& part, int panel, int row, int tile,
                     float* out) const {
  const Packed& w = part.weight;
  const bool floats = is_float(w.format);
  const void* x = floats ? (const void*)step.at(in_, row) : step.act(act_, row, thread, count(step, rows_));
  const size_t stride = floats ? step.width(in_.buffer) : step.width(act_) / kQuant;
  step.k.tile[w.format][tile](w.data + panel * w.panel, floats ? w.cols : w.cols / kQuant, x, stride, out);
  if (part.bias.empty()) return;
  for (int r = 0; r < kTileRows[tile]; r++)
    for (int i = 0; i < kLanes && panel * kLanes + i < w.rows; i++)
      out[r * kLanes + i] += part.bias[panel * kLanes + i];
}

void Linear::finish(Step& step, const Part& part, int panel, int row, int rows, const float* out) const {
  const int n = std::min(kLanes, part.weight.rows - panel * kLanes);
  for (int r = 0; r < rows; r++) {
    float* y = step.at(part.out, row + r) + panel * kLanes;
    const float* x = out + r * kLanes;
    if (n == kLanes)  // the usual case, in a form that compilers turn into vectors
      for (int i = 0; i < kLanes; i++) y[i] = finish_ == Finish::kAdd ? y[i] + x[i] : x[i];
    else
      for (int i = 0; i < n; i++) y[i] = finish_ == Finish::kAdd ? y[i] + x[i] : x[i];
  }
}

}  // namespace cutaway
