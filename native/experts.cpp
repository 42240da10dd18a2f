#include "experts.h"

#include <string.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace cutaway {
namespace {

bool alike(const Packed& a, const Packed& b) { return a.rows == b.rows && a.cols == b.cols; }

}  // namespace

Experts::Experts(Args args, std::vector<Expert> experts)
    : args_(args), experts_(std::move(experts)), hidden_(experts_[0].up.cols), inner_(experts_[0].up.rows),
      float_in_(is_float(experts_[0].up.format)), float_down_(is_float(experts_[0].down.format)),
      by_expert_(experts_.size()), order_(experts_.size()), exp_(experts_.size()) {
  const Expert& e = experts_[0];
  for (const Expert& x : experts_)
    if (!alike(x.gate, e.up) || !alike(x.up, e.up) || !alike(x.down, e.down) ||
        is_float(x.gate.format) != float_in_ || is_float(x.up.format) != float_in_ ||
        is_float(x.down.format) != float_down_)
      throw std::invalid_argument("experts differ in shape, or in whether they are quantised");
  if (e.down.cols != inner_ || e.down.rows != hidden_ || args.used < 1 || args.used > (int)experts_.size() ||
      (float_in_ ? args.in.floats.buffer : args.in.act) < 0 || (!float_down_ && inner_ % kQuant))
    throw std::invalid_argument("experts do not fit their inputs");
}

void Experts::run(Step& step, int thread) {
  if (thread == 0) route(step);
  step.pool.barrier();
  gather(step, thread);
  step.pool.barrier();
  multiply(step, thread, true);
  step.pool.barrier();
  if (!float_down_) {
    quantise(step, thread);
    step.pool.barrier();
  }
  multiply(step, thread, false);
  step.pool.barrier();
  mix(step, thread);
}

void Experts::route(Step& step) {
  const int rows = count(step, args_.rows);
  for (auto& of_one : by_expert_) of_one.clear();
  for (int row = 0; row < rows; row++) choose(step, row);
  choices_.clear(), first_.clear();
  place_.resize((size_t)rows * args_.used);
  for (const auto& of_one : by_expert_) {
    first_.push_back((int)choices_.size());
    for (const Choice& choice : of_one) {
      place_[choice.row * args_.used + choice.rank] = (int)choices_.size();
      choices_.push_back(choice);
    }
  }
  const size_t items = choices_.size();
  first_.push_back((int)items);
  if (float_in_) x_.resize(items * hidden_);
  else x_act_.resize(items * (hidden_ / kQuant));
  middle_.resize(items * inner_);
  if (!float_down_) middle_act_.resize(items * (inner_ / kQuant));
  result_.resize(items * hidden_);
  const int n = (int)experts_.size(), threads = step.pool.size();
  inward_.deal(n * experts_[0].up.panels(), threads);
  outward_.deal(n * experts_[0].down.panels(), threads);
}

// The highest scores, ties to the lowest index, and the softmax of all scores at these. Where that is no
// number, no weight is one: the row must end as not finite, and NaN has no place in an order.
void Experts::choose(const Step& step, int row) {
  const int n = (int)experts_.size(), used = args_.used;
  const float* score = step.at(args_.scores, row);
  const float top = *std::max_element(score, score + n);
  if (!std::isfinite(top) || std::any_of(score, score + n, [](float x) { return std::isnan(x); })) {
    for (int i = 0; i < used; i++) by_expert_[i].push_back({row, i, NAN});
    return;
  }
  std::iota(order_.begin(), order_.end(), 0);
  std::partial_sort(order_.begin(), order_.begin() + used, order_.end(), [&](int a, int b) {
    return score[a] != score[b] ? score[a] > score[b] : a < b;
  });
  step.k.exp_each(score, n, top, exp_.data());
  double total = 0;
  if (args_.norm_topk_prob) for (int i = 0; i < used; i++) total += exp_[order_[i]];
  else for (int i = 0; i < n; i++) total += exp_[i];
  for (int i = 0; i < used; i++) by_expert_[order_[i]].push_back({row, i, (float)(exp_[order_[i]] / total)});
}

// An item's quant blocks: the items of one expert are cut into tiles for themselves.
ActRow Experts::act(std::vector<ActBlock>& rows, int blocks, int item) const {
  const int* next = std::upper_bound(first_.data(), first_.data() + first_.size(), item);
  const int first = next[-1];
  return act_row(rows.data() + (size_t)first * blocks, blocks, item - first, *next - first);
}

void Experts::gather(const Step& step, int thread) {
  const int rows = count(step, args_.rows), blocks = hidden_ / kQuant;
  for (int i = thread; i < (int)choices_.size(); i += step.pool.size()) {
    const int row = choices_[i].row;
    if (float_in_) memcpy(&x_[(size_t)i * hidden_], step.at(args_.in.floats, row), sizeof(float) * hidden_);
    else copy(step.act(args_.in.act, row, thread, rows), blocks, act(x_act_, blocks, i));
  }
}

// inward: gate and up, to `middle`; else down, to `result`.
void Experts::multiply(Step& step, int thread, bool inward) {
  alignas(64) float out[kTileRows[0] * kLanes], up[kTileRows[0] * kLanes];
  const int panels = (inward ? experts_[0].up : experts_[0].down).panels();
  const int width = inward ? inner_ : hidden_;
  float* to = inward ? middle_.data() : result_.data();
  for (int item, end; (inward ? inward_ : outward_).take(thread, 1, &item, &end);) {
    const Expert& e = experts_[item / panels];
    const int panel = item % panels, last = first_[item / panels + 1];
    const int lanes = std::min(kLanes, width - panel * kLanes);
    for (int i = first_[item / panels]; i < last;) {
      const int tile = tile_of(last - i);
      const Ahead ahead = i == first_[item / panels] ? step.ahead : Ahead::kNone;
      tiles(step, inward ? e.gate : e.down, panel, i, inward, tile, ahead, out);
      if (inward) {
        tiles(step, e.up, panel, i, inward, tile, ahead, up);
        step.k.map(Map::silu_mul, out, up, 0, kTileRows[tile] * kLanes, out);
      }
      for (int r = 0; r < kTileRows[tile]; r++, i++)
        memcpy(to + (size_t)i * width + panel * kLanes, out + r * kLanes, sizeof(float) * lanes);
    }
  }
}

// One panel times the items from `first` on, as many as the tile has.
void Experts::tiles(const Step& step, const Packed& w, int panel, int first, bool inward, int tile,
                    Ahead ahead, float* out) const {
  const bool floats = is_float(w.format);
  const size_t stride = floats ? w.cols : w.cols / kQuant;
  const float* x = inward ? x_.data() : middle_.data();
  const ActBlock* act = inward ? x_act_.data() : middle_act_.data();
  const void* from = floats ? (const void*)(x + first * stride) : act + first * stride;
  step.k.tile[w.format][tile](w.data + panel * w.panel, (int)stride, from, stride, ahead, out);
  if (w.factor != 1)
    for (int i = 0; i < kTileRows[tile] * kLanes; i++) out[i] *= w.factor;
}

void Experts::quantise(const Step& step, int thread) {
  for (int i = thread; i < (int)choices_.size(); i += step.pool.size())
    step.k.quantise(&middle_[(size_t)i * inner_], inner_, act(middle_act_, inner_ / kQuant, i));
}

void Experts::mix(const Step& step, int thread) const {
  for (int row = thread; row < count(step, args_.rows); row += step.pool.size()) {
    float *y = step.at(args_.out, row), *inner = args_.inner.buffer < 0 ? nullptr : step.at(args_.inner, row);
    for (int rank = 0; rank < args_.used; rank++) {
      const int i = place_[row * args_.used + rank];
      if (inner) memcpy(inner + (size_t)rank * inner_, &middle_[(size_t)i * inner_], sizeof(float) * inner_);
      const float* result = &result_[(size_t)i * hidden_];
      for (int k = 0; k < hidden_; k++)
        y[k] = rank ? y[k] + choices_[i].weight * result[k] : choices_[i].weight * result[k];
    }
  }
}

}  // namespace cutaway
