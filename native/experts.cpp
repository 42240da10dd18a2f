#include "experts.h"

#include <string.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace cutaway {
namespace {

bool alike(const Biased& a, const Biased& b) {
  const Packed &x = a.weight, &y = b.weight;
  return x.rows == y.rows && x.cols == y.cols && is_float(x.format) == is_float(y.format) &&
         (a.bias.empty() || (int)a.bias.size() == x.rows);
}

template <class Do> void each_matrix(const Expert& expert, Do act) {
  if (expert.gate) act(expert.gate->weight);
  act(expert.up.weight), act(expert.down.weight);
}

std::vector<Expert> check(std::vector<Expert> experts) {
  if (experts.empty()) throw std::invalid_argument("there are no experts");
  return experts;
}

}  // namespace

Experts::Experts(Args args, std::vector<Expert> experts)
    : args_(std::move(args)), experts_(check(std::move(experts))), hidden_(experts_[0].up.weight.cols),
      inner_(experts_[0].up.weight.rows), float_in_(is_float(experts_[0].up.weight.format)),
      float_down_(is_float(experts_[0].down.weight.format)), by_expert_(experts_.size()), order_(experts_.size()),
      weight_(experts_.size()), wanted_(experts_.size()) {
  const Expert& e = experts_[0];
  const Mixture& m = args_.mixture;
  const int n = (int)experts_.size();
  const bool gated = kMaps[(int)m.activation].form != Form::unary;
  for (const Expert& x : experts_)
    if (x.gate.has_value() != gated || (gated && !alike(*x.gate, e.up)) || !alike(x.up, e.up) || !alike(x.down, e.down))
      throw std::invalid_argument("experts differ in shape, or in whether they are quantised");
  if (e.down.weight.cols != inner_ || e.down.weight.rows != hidden_ || m.used < 1 || m.used > n ||
      (float_in_ ? args_.in.floats.buffer : args_.in.act) < 0 || (!float_down_ && inner_ % kQuant))
    throw std::invalid_argument("experts do not fit their inputs");
  if (m.groups < 1 || m.used_groups < 1 || m.used_groups > m.groups || n % m.groups ||
      (m.groups > 1 && (n / m.groups < 2 || m.used > n / m.groups * m.used_groups)) ||
      (!m.bias.empty() && (int)m.bias.size() != n))
    throw std::invalid_argument("the choice does not fit the experts");
}

void Experts::run(Step& step, int thread) {
  if (thread == 0) route(step);
  step.pool.barrier();
  prefetch_panel(inward_.begin(thread), true, kFirstLines);
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
  if (thread == 0 && kept_experts_) drop();
  mix(step, thread);
}

void Experts::route(Step& step) {
  const int rows = count(step, args_.rows);
  for (auto& of_one : by_expert_) of_one.clear();
  for (int row = 0; row < rows; row++) choose(step, row);
  choices_.clear(), first_.clear(), active_.clear();
  place_.resize((size_t)rows * args_.mixture.used);
  for (size_t i = 0; i < by_expert_.size(); i++) {
    if (by_expert_[i].empty()) continue;
    active_.push_back((int)i);
    first_.push_back((int)choices_.size());
    for (const Choice& choice : by_expert_[i]) {
      place_[choice.row * args_.mixture.used + choice.rank] = (int)choices_.size();
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
  const int n = (int)active_.size(), threads = step.pool.size();
  inward_.deal(n * experts_[0].up.weight.panels(), threads);
  outward_.deal(n * experts_[0].down.weight.panels(), threads);
  if (kept_experts_) expect();
}

void Experts::keep_share(double share) {
  const int n = (int)experts_.size();
  if (share >= 1) return;
  kept_experts_.emplace(n, (int)(n * share));
  for (const auto& expert : experts_)
    each_matrix(expert, [](const Packed& w) { w.owner->expect_no_order(w.data, w.bytes()); });
}

// All that this step will read of the file, at once: the disk is busy from here on. Of what is kept the system may have
// taken some back.
void Experts::expect() {
  dropped_.clear();
  for (size_t i = 0; i < active_.size(); i++) {
    each_matrix(experts_[active_[i]], [](const Packed& w) { w.owner->expect_pages(w.data, w.bytes()); });
    const int dropped = kept_experts_->choose(active_[i], first_[i + 1] - first_[i]);
    if (dropped >= 0) dropped_.push_back(dropped);
  }
  kept_experts_->age();
}

void Experts::drop() const {
  for (const int i : dropped_)
    if (!kept_experts_->is_kept(i))  // it may have come back for another
      each_matrix(experts_[i], [](const Packed& w) { w.owner->drop_exactly(w.data, w.bytes()); });
}

// Mixture.choose of mixture.py. Where the scores are no numbers, no weight is one: the row must end as not finite, and
// NaN has no place in an order.
void Experts::choose(const Step& step, int row) {
  const Mixture& m = args_.mixture;
  const int n = (int)experts_.size();
  const float* score = step.row_at(args_.scores, row);
  const float top = *std::max_element(score, score + n);
  if (!std::isfinite(top) || std::any_of(score, score + n, [](float x) { return std::isnan(x); })) {
    for (int i = 0; i < m.used; i++) by_expert_[i].push_back({row, i, NAN});
    return;
  }
  if (m.gating == Gating::sparsemixer) return mix_sparsely(step, row, score);
  weigh(step, score, top);
  std::iota(order_.begin(), order_.end(), 0);
  std::partial_sort(order_.begin(), order_.begin() + m.used, order_.end(), [&](int a, int b) {
    return wanted_[a] != wanted_[b] ? wanted_[a] > wanted_[b] : a < b;
  });
  double total = m.normed ? 0 : whole_;
  if (m.normed) for (int i = 0; i < m.used; i++) total += weight_[order_[i]];
  for (int i = 0; i < m.used; i++)
    by_expert_[order_[i]].push_back({row, i, (float)(weight_[order_[i]] / total * m.scale)});
}

// Each is the best of those that are left; its weight is its share among those of them that score nearly as much.
void Experts::mix_sparsely(const Step& step, int row, const float* score) {
  const Mixture& m = args_.mixture;
  const int n = (int)experts_.size();
  std::vector<float> left(score, score + n);
  for (int rank = 0; rank < m.used; rank++) {
    const int winner = (int)(std::max_element(left.begin(), left.end()) - left.begin());
    const double best = left[winner];
    step.k.exp_each(left.data(), n, left[winner], weight_.data());
    double total = 0;
    for (int i = 0; i < n; i++)
      if (std::isfinite(left[i]) && !((best - left[i]) / std::max(std::abs((double)left[i]), best) > m.tolerance))
        total += weight_[i];
    by_expert_[winner].push_back({row, rank, (float)(weight_[winner] / total * m.scale)});
    left[winner] = -INFINITY;
  }
}

void Experts::weigh(const Step& step, const float* score, float top) {
  const Mixture& m = args_.mixture;
  const int n = (int)experts_.size();
  whole_ = 1;
  if (m.gating == Gating::softmax) {
    step.k.exp_each(score, n, top, weight_.data());
    if (!m.normed || !m.bias.empty() || m.groups > 1) whole_ = std::accumulate(weight_.begin(), weight_.end(), 0.0);
  } else {
    below_.resize(n);
    for (int i = 0; i < n; i++) below_[i] = -std::abs(score[i]);
    step.k.exp_each(below_.data(), n, 0, weight_.data());
    for (int i = 0; i < n; i++) weight_[i] = (score[i] < 0 ? weight_[i] : 1) / (1 + weight_[i]);
  }
  for (int i = 0; i < n; i++)
    wanted_[i] = !m.bias.empty() ? weight_[i] / whole_ + m.bias[i] : m.groups > 1 ? weight_[i] : score[i];
  if (m.groups > 1) keep_groups();
}

// Experts are wanted only of the groups whose two best experts, or whose best one, have the largest sums; ties go to the
// lowest index.
void Experts::keep_groups() {
  const Mixture& m = args_.mixture;
  const int per_group = (int)experts_.size() / m.groups;
  std::vector<double> best(m.groups);
  std::vector<int> order(m.groups);
  for (int g = 0; g < m.groups; g++) {
    double first = -INFINITY, second = -INFINITY;
    for (int i = g * per_group; i < (g + 1) * per_group; i++)
      if (wanted_[i] > first) second = std::exchange(first, wanted_[i]);
      else second = std::max(second, wanted_[i]);
    best[g] = m.best_of_group > 1 ? first + second : first;
  }
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return best[a] > best[b]; });
  for (int i = m.used_groups; i < m.groups; i++)
    std::fill_n(wanted_.begin() + order[i] * per_group, per_group, -INFINITY);
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
    if (float_in_) memcpy(&x_[(size_t)i * hidden_], step.row_at(args_.in.floats, row), sizeof(float) * hidden_);
    else copy(step.act(args_.in.act, row, thread, rows), blocks, act(x_act_, blocks, i));
  }
}

// The first lines of a panel, counted through all chosen experts: else what reads it would wait for them.
void Experts::prefetch_panel(int item, bool inward, int lines) const {
  const int panels = (inward ? experts_[0].up : experts_[0].down).weight.panels();
  if (item >= (int)active_.size() * panels) return;
  const Expert& e = experts_[active_[item / panels]];
  const auto ask = [&](const Packed& w) {
    const uint8_t* p = w.data + item % panels * w.panel;
    for (int i = 0; i < lines; i++) __builtin_prefetch(p + 64 * i, 0, 2);
  };
  ask((inward ? e.up : e.down).weight);
  if (inward && e.gate) ask(e.gate->weight);
}

// inward: gate and up, to `middle`; else down, to `result`.
void Experts::multiply(Step& step, int thread, bool inward) {
  WorkQueue& queue = inward ? inward_ : outward_;
  const int panels = (inward ? experts_[0].up : experts_[0].down).weight.panels();
  const int all = (int)active_.size() * panels, grain = std::clamp(all / (step.pool.size() * 16), 1, kGrain);
  for (int item, end; queue.take(thread, grain, &item, &end);)
    for (; item < end; item++) {
      if ((item + 1) % panels == 0) prefetch_panel(item + 1, inward, kNextLines);
      multiply_panel(step, item / panels, item % panels, inward);
    }
  if (inward) prefetch_panel(outward_.begin(thread), false, kFirstLines);
}

// One panel of a chosen expert times all its rows.
void Experts::multiply_panel(const Step& step, int index, int panel, bool inward) {
  alignas(64) float out[kStretch * kLanes], up[kStretch * kLanes];
  const Expert& e = experts_[active_[index]];
  const Mixture& m = args_.mixture;
  const int width = inward ? inner_ : hidden_, lanes = std::min(kLanes, width - panel * kLanes);
  float* to = inward ? middle_.data() : result_.data();
  Ahead ahead = step.ahead;  // for the first rows: then the panel is in the cache
  for (int i = first_[index], end = first_[index + 1]; i < end; ahead = Ahead::kNone) {
    const int tile_rows = kTileRows[tile_of(end - i)];
    const int rows = end - i >= step.k.tiles_from ? std::min(end - i, kStretch) / tile_rows * tile_rows : tile_rows;
    const bool gated = inward && e.gate;
    for (int r = 0; r < rows; r++)  // what will be written: of many rows it is in no near cache
      __builtin_prefetch(to + (size_t)(i + r) * width + panel * kLanes, 1);
    multiply_rows(step, gated ? *e.gate : inward ? e.up : e.down, panel, i, rows, inward, ahead, out);
    if (gated) multiply_rows(step, e.up, panel, i, rows, inward, ahead, up);
    if (inward) step.k.map(m.activation, out, gated ? up : nullptr, m.limit, rows * kLanes, out);
    for (int r = 0; r < rows; r++, i++)
      memcpy(to + (size_t)i * width + panel * kLanes, out + r * kLanes, sizeof(float) * lanes);
  }
}

// One panel times the items from `first` on: those of a tile, or of several of 16 rows.
void Experts::multiply_rows(const Step& step, const Biased& matrix, int panel, int first, int rows, bool inward,
                            Ahead ahead, float* out) const {
  const Packed& w = matrix.weight;
  const uint8_t* p = w.data + panel * w.panel;
  const bool floats = is_float(w.format);
  const size_t stride = floats ? w.cols : w.cols / kQuant;
  const float* x = (inward ? x_.data() : middle_.data()) + first * stride;
  const ActBlock* act = (inward ? x_act_.data() : middle_act_.data()) + first * stride;
  const int tile = tile_of(rows);
  if (rows >= step.k.tiles_from && step.k.tiles[w.format])
    step.k.tiles[w.format](p, (int)stride, {act, stride * kTileRows[0], rows / kTileRows[0]}, ahead, out);
  else
    for (int r = 0; r < rows; r += kTileRows[tile], ahead = Ahead::kNone) {
      const void* from = floats ? (const void*)(x + r * stride) : act + r * stride;
      step.k.tile[w.format][tile](p, (int)stride, from, stride, ahead, out + r * kLanes);
    }
  if (w.factor != 1)
    for (int i = 0; i < rows * kLanes; i++) out[i] *= w.factor;
  if (inward && args_.mixture.weighs_input)  // a product is linear in what is read
    for (int i = 0; i < rows * kLanes; i++) out[i] *= choices_[first + i / kLanes].weight;
  if (matrix.bias.empty()) return;
  const int lanes = std::min(kLanes, w.rows - panel * kLanes);
  for (int r = 0; r < rows; r++)
    for (int i = 0; i < lanes; i++) out[r * kLanes + i] += matrix.bias[panel * kLanes + i];
}

void Experts::quantise(const Step& step, int thread) {
  for (int i = thread; i < (int)choices_.size(); i += step.pool.size())
    step.k.quantise(&middle_[(size_t)i * inner_], inner_, act(middle_act_, inner_ / kQuant, i));
}

// Threads share columns, so that all have work with one row, too.
void Experts::mix(const Step& step, int thread) const {
  const int threads = step.pool.size(), used = args_.mixture.used;
  const int first = hidden_ * thread / threads, last = hidden_ * (thread + 1) / threads;
  for (int row = 0; row < count(step, args_.rows); row++) {
    float *y = step.row_at(args_.out, row), *inner = args_.inner.buffer < 0 ? nullptr : step.row_at(args_.inner, row);
    for (int rank = 0; rank < used; rank++) {
      const int i = place_[row * used + rank];
      if (inner && row % threads == thread)
        memcpy(inner + (size_t)rank * inner_, &middle_[(size_t)i * inner_], sizeof(float) * inner_);
      const float *result = &result_[(size_t)i * hidden_], weight = args_.mixture.weighs_input ? 1 : choices_[i].weight;
      for (int k = first; k < last; k++) y[k] = rank ? y[k] + weight * result[k] : weight * result[k];
    }
  }
}

}  // namespace cutaway
