// Ops that keep a recurrent state of each text.
#include <math.h>
#include <string.h>

#include <algorithm>
#include <stdexcept>

#include "ops.h"

namespace cutaway {

Conv::Conv(Plan& plan, View in, View out, ConvWeights weights)
    : in_(in), out_(out), weights_(std::move(weights)), states_(plan.states()),
      at_(plan.claim_state((size_t)before() * weights_.width)) {
  const auto& [weight, bias, width, taps] = weights_;
  if (width <= 0 || taps < 2 || taps > kMostTaps || weight.size() != (size_t)width * taps ||
      (!bias.empty() && bias.size() != (size_t)width))
    throw std::invalid_argument("a convolution has 2 to " + std::to_string(kMostTaps) + " weights for each number");
}

// The inputs before each sequence's rows are copied here: its state may be overwritten while other rows read it.
void Conv::prepare(Step& step) {
  const size_t floats = (size_t)before() * weights_.width;
  before_.assign(step.segments.size() * floats, 0.0f);
  segment_of_.resize(step.batch.rows);
  for (size_t s = 0; s < step.segments.size(); s++) {
    const auto& segment = step.segments[s];
    if (segment.from >= 0) memcpy(before_.data() + s * floats, states_.at(segment.from) + at_, floats * sizeof(float));
    std::fill_n(segment_of_.begin() + segment.first, segment.rows, (int)s);
  }
}

// The input of a row of the batch, or of one of those before its sequence's first.
const float* Conv::input(const Step& step, int segment, int row) const {
  const int first = step.segments[segment].first;
  if (row >= first) return step.at(in_, row);
  return before_.data() + ((size_t)(segment + 1) * before() + row - first) * weights_.width;
}

void Conv::run(Step& step, int thread) {
  constexpr int part = 512;
  const auto& [weight, bias, width, taps] = weights_;
  const int threads = step.pool.size(), parts = (width + part - 1) / part;
  const int64_t items = (int64_t)step.batch.rows * parts;
  for (int i = (int)(items * thread / threads); i < (int)(items * (thread + 1) / threads); i++) {
    const int row = i / parts, at = i % parts * part;
    const float* rows[kMostTaps];
    for (int t = 0; t < taps; t++) rows[t] = input(step, segment_of_[row], row - before() + t) + at;
    step.k.conv(rows, weight.data() + at, width, bias.empty() ? nullptr : bias.data() + at, taps,
                std::min(part, width - at), step.at(out_, row) + at);
  }
  for (int i = thread; i < (int)step.stored.size(); i += threads) {
    const auto [row, slot] = step.stored[i];
    float* to = states_.at(slot) + at_;
    for (int t = 0; t < before(); t++)
      memcpy(to + (size_t)t * width, input(step, segment_of_[row], row - before() + 1 + t), sizeof(float) * width);
  }
}

DeltaNet::DeltaNet(Plan& plan, Views at, DeltaShape shape, std::vector<float> a, std::vector<float> dt)
    : at_(at), shape_(shape), a_(std::move(a)), dt_(std::move(dt)), states_(plan.states()),
      state_(plan.claim_state((size_t)shape.heads * shape.keys * shape.values)) {
  if (shape.heads % shape.k_heads || shape.values % 16 || (int)a_.size() != shape.heads || dt_.size() != a_.size())
    throw std::invalid_argument("a delta net: these heads are not supported");
}

void DeltaNet::prepare(Step& step) {
  units_.resize((size_t)step.batch.rows * 2 * shape_.k_heads * shape_.keys);
  keep_.resize((size_t)step.batch.rows * shape_.heads);
  learn_.resize(keep_.size());
  queue_.deal((int)step.segments.size() * shape_.heads * groups(), step.pool.size());
}

// A query and a key of length 1, the query divided by the root of how many numbers it has.
void DeltaNet::make_units(Step& step, int row, int k_head) {
  const int n = shape_.keys, all = shape_.k_heads * n;
  const float* x = step.at(at_.qkv, row) + k_head * n;
  float* unit = units_.data() + (size_t)row * 2 * all + k_head * n;
  step.k.unit(x, 1 / sqrtf((float)n), n, unit);
  step.k.unit(x + all, 1, n, unit + all);
}

void DeltaNet::run(Step& step, int thread) {
  const int threads = step.pool.size(), heads = shape_.heads;
  for (int i = thread; i < step.batch.rows * shape_.k_heads; i += threads) make_units(step, i / shape_.k_heads, i % shape_.k_heads);
  for (int row = thread; row < step.batch.rows; row += threads)
    step.k.keep_and_learn(step.at(at_.a, row), dt_.data(), a_.data(), step.at(at_.b, row), heads,
                          keep_.data() + (size_t)row * heads, learn_.data() + (size_t)row * heads);
  step.pool.barrier();
  for (int item, end; queue_.take(thread, 1, &item, &end);)
    compute(step, step.segments[item / groups() / heads], item / groups() % heads, item % groups() * kColumns,
            step.scratch(thread));
}

// Some value columns of a head, from `first` on, over all rows of a sequence; state: where they are kept meanwhile.
void DeltaNet::compute(Step& step, const Step::Segment& segment, int head, int first, float* state) {
  const auto& [k_heads, heads, keys, values, grouped] = shape_;
  const int columns = std::min(kColumns, values - first), all = k_heads * keys;
  const size_t at = state_ + (size_t)head * keys * values + first;
  const float* before = segment.from < 0 ? nullptr : states_.at(segment.from) + at;
  for (int i = 0; i < keys; i++)
    if (before) memcpy(state + i * kColumns, before + (size_t)i * values, sizeof(float) * columns);
    else std::fill_n(state + i * kColumns, columns, 0.0f);
  auto stored = std::lower_bound(step.stored.begin(), step.stored.end(), segment.first,
                                 [](const Step::Stored& s, int row) { return s.row < row; });
  const int k_head = grouped ? head / (heads / k_heads) : head % k_heads;
  for (int row = segment.first; row < segment.first + segment.rows; row++) {
    const float* unit = units_.data() + (size_t)row * 2 * all + k_head * keys;
    const size_t gate = (size_t)row * heads + head;
    const DeltaToken token{unit, unit + all, keep_[gate], learn_[gate], keys, kColumns};
    step.k.delta(token, state, columns, step.at(at_.qkv, row) + 2 * all + head * values + first,
                 step.at(at_.out, row) + head * values + first);
    for (; stored != step.stored.end() && stored->row == row; stored++)
      for (int i = 0; i < keys; i++)
        memcpy(states_.at(stored->slot) + at + (size_t)i * values, state + i * kColumns, sizeof(float) * columns);
  }
}

}  // namespace cutaway
