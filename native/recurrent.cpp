// Ops that keep a recurrent state of each text.
#include "recurrent.h"

#include <math.h>
#include <string.h>

#include <algorithm>
#include <stdexcept>

namespace cutaway {

static void check(const ConvWeights& weights) {
  const auto& [weight, bias, width, taps, more, groups] = weights;
  if (groups <= 0 || width % groups) throw std::invalid_argument("a convolution has whole groups");
  if (width <= 0 || taps < 2 || taps > kMostTaps || weight.size() != (size_t)width * taps ||
      (!bias.empty() && bias.size() != (size_t)width))
    throw std::invalid_argument("a convolution has 2 to " + std::to_string(kMostTaps) + " weights for each number");
}

Conv::Conv(Plan& plan, View in, View out, ConvWeights weights)
    : in_(in), out_(out), weights_(std::move(weights)), states_(plan.states()),
      at_(plan.claim_state((size_t)state_rows() * weights_.width)) {
  check(weights_);
}

// The inputs before each sequence's rows are copied here: its state may be overwritten while other rows read it.
void Conv::prepare(Step& step) {
  const size_t floats = (size_t)state_rows() * weights_.width;
  before_.assign(step.segments.size() * floats, 0.0f);
  segment_of_.resize(step.batch.rows);
  for (size_t s = 0; s < step.segments.size(); s++) {
    const auto& segment = step.segments[s];
    if (segment.from >= 0) memcpy(before_.data() + s * floats, states_.state_at(segment.from) + at_, floats * sizeof(float));
    std::fill_n(segment_of_.begin() + segment.first, segment.rows, (int)s);
  }
}

// The input of a row of the batch, or of one of those before its sequence's first.
const float* Conv::input(const Step& step, int segment, int row) const {
  const int first = step.segments[segment].first;
  if (row >= first) return step.row_at(in_, row);
  return before_.data() + ((size_t)(segment + 1) * state_rows() + row - first) * weights_.width;
}

void Conv::run(Step& step, int thread) {
  constexpr int part = 512;
  const auto& [weight, bias, width, taps, more, groups] = weights_;
  const int group = width / groups, each = (group + part - 1) / part, parts = groups * each;
  const int threads = step.pool.size();
  const int64_t items = (int64_t)step.batch.rows * parts;
  for (int i = (int)(items * thread / threads); i < (int)(items * (thread + 1) / threads); i++) {
    const int row = i / parts, which = i % parts / each, in_group = i % each * part, at = which * group + in_group;
    const float* rows[kMostTaps];
    for (int t = 0; t < taps; t++) rows[t] = input(step, segment_of_[row], row - state_rows() + t) + at;
    const ConvTaps weights{weight.data() + at, bias.empty() ? nullptr : bias.data() + at,
                           more.buffer < 0 ? nullptr : step.row_at(more, row) + which * taps, (size_t)width};
    step.k.conv(rows, weights, taps, std::min(part, group - in_group), step.row_at(out_, row) + at);
  }
  for (int i = thread; i < (int)step.stored.size(); i += threads) {
    const auto [row, slot] = step.stored[i];
    float* to = states_.state_at(slot) + at_;
    for (int t = 0; t < state_rows(); t++)
      memcpy(to + (size_t)t * width, input(step, segment_of_[row], row - state_rows() + 1 + t), sizeof(float) * width);
  }
}

CentredConv::CentredConv(View in, View out, ConvWeights weights)
    : in_(in), out_(out), weights_(std::move(weights)), zeros_(std::max(weights_.width, 0)) {
  check(weights_);
  if (weights_.taps % 2 == 0) throw std::invalid_argument("a centred convolution has an odd number of weights");
}

void CentredConv::prepare(Step& step) {
  segment_of_.resize(step.batch.rows);
  for (size_t s = 0; s < step.segments.size(); s++) {
    const auto& segment = step.segments[s];
    if (step.batch.positions[segment.first] != 0)
      throw std::invalid_argument("batch: this model reads a text in one step, from its first token on");
    std::fill_n(segment_of_.begin() + segment.first, segment.rows, (int)s);
  }
}

void CentredConv::run(Step& step, int thread) {
  const int width = weights_.width, taps = weights_.taps, threads = step.pool.size();
  const ConvTaps weights{weights_.weight.data(), weights_.bias.empty() ? nullptr : weights_.bias.data(), nullptr, (size_t)width};
  const int64_t count = step.batch.rows;
  for (int row = (int)(count * thread / threads); row < (int)(count * (thread + 1) / threads); row++) {
    const auto& segment = step.segments[segment_of_[row]];
    const float* rows[kMostTaps];
    for (int t = 0; t < taps; t++) {
      const int at = row - taps / 2 + t;
      const bool is_inside = at >= segment.first && at < segment.first + segment.rows;
      rows[t] = is_inside ? step.row_at(in_, at) : zeros_.data();
    }
    step.k.conv(rows, weights, taps, width, step.row_at(out_, row));
  }
}

HeadStates::HeadStates(Plan& plan, int heads, int keys, int values)
    : heads_(heads), keys_(keys), values_(values), states_(plan.states()),
      state_(plan.claim_state((size_t)heads * keys * values)) {
  if (heads <= 0 || keys <= 0 || values <= 0 || values % 16)
    throw std::invalid_argument("states of these heads are not supported");
}

void HeadStates::prepare(Step& step) {
  queue_.deal((int)step.segments.size() * heads_ * groups(), step.pool.size());
}

void HeadStates::run(Step& step, int thread) {
  begin(step, thread);
  step.pool.barrier();
  for (int item, end; queue_.take(thread, 1, &item, &end);) {
    const int first = item % groups() * kColumns;
    compute(step, step.segments[item / groups() / heads_],
            {item / groups() % heads_, first, std::min(kColumns, values_ - first)}, step.scratch(thread));
  }
}

// Some columns over all rows of a sequence; state: where they are kept meanwhile.
void HeadStates::compute(Step& step, const Step::Segment& segment, const Columns& columns, float* state) {
  const size_t at = state_ + (size_t)columns.head * keys_ * values_ + columns.first;
  const float* before = segment.from < 0 ? nullptr : states_.state_at(segment.from) + at;
  for (int i = 0; i < keys_; i++)
    if (before) memcpy(state + i * kColumns, before + (size_t)i * values_, sizeof(float) * columns.count);
    else std::fill_n(state + i * kColumns, columns.count, 0.0f);
  auto stored = std::lower_bound(step.stored.begin(), step.stored.end(), segment.first,
                                 [](const Step::Stored& s, int row) { return s.row < row; });
  for (int row = segment.first; row < segment.first + segment.rows; row++) {
    change(step, row, columns, state);
    for (; stored != step.stored.end() && stored->row == row; stored++)
      for (int i = 0; i < keys_; i++)
        memcpy(states_.state_at(stored->slot) + at + (size_t)i * values_, state + i * kColumns, sizeof(float) * columns.count);
  }
}

DeltaNet::DeltaNet(Plan& plan, Views at, DeltaShape shape, std::vector<float> a, std::vector<float> dt)
    : HeadStates(plan, shape.heads, shape.keys, shape.values), at_(at), shape_(shape), a_(std::move(a)), dt_(std::move(dt)) {
  const size_t heads = (size_t)shape.heads;
  if (shape.k_heads <= 0 || shape.heads % shape.k_heads || dt_.size() != a_.size() ||
      (a_.size() != heads && a_.size() != heads * shape.keys))
    throw std::invalid_argument("a delta net: these heads are not supported");
}

void DeltaNet::prepare(Step& step) {
  HeadStates::prepare(step);
  units_.resize((size_t)step.batch.rows * 2 * shape_.k_heads * keys_);
  keep_.resize((size_t)step.batch.rows * a_.size());
  learn_.resize((size_t)step.batch.rows * heads_);
}

// A query and a key of length 1, the query divided by the root of how many numbers it has.
void DeltaNet::make_units(Step& step, int row, int k_head) {
  const int n = keys_, all = shape_.k_heads * n;
  const float* x = step.row_at(at_.qkv, row) + k_head * n;
  float* unit = units_.data() + (size_t)row * 2 * all + k_head * n;
  step.k.unit(x, 1 / sqrtf((float)n), n, unit);
  step.k.unit(x + all, 1, n, unit + all);
}

void DeltaNet::begin(Step& step, int thread) {
  const int threads = step.pool.size(), k_heads = shape_.k_heads;
  for (int i = thread; i < step.batch.rows * k_heads; i += threads) make_units(step, i / k_heads, i % k_heads);
  for (int row = thread; row < step.batch.rows; row += threads) {
    step.k.keep(step.row_at(at_.a, row), dt_.data(), a_.data(), (int)a_.size(), keep_.data() + (size_t)row * a_.size());
    step.k.learn(step.row_at(at_.b, row), shape_.learn_factor, heads_, learn_.data() + (size_t)row * heads_);
  }
}

void DeltaNet::change(Step& step, int row, const Columns& columns, float* state) {
  const auto [head, first, count] = columns;
  const int all = shape_.k_heads * keys_;
  const int k_head = shape_.grouped ? head / (heads_ / shape_.k_heads) : head % shape_.k_heads;
  const float* unit = units_.data() + (size_t)row * 2 * all + k_head * keys_;
  const size_t gate = (size_t)row * heads_ + head, keeps = a_.size() / heads_;
  const DeltaToken token{unit, unit + all, keep_.data() + gate * keeps, learn_[gate], keys_, keeps > 1, kColumns};
  const int at = head * values_ + first;
  step.k.delta(token, state, count, step.row_at(at_.qkv, row) + 2 * all + at, step.row_at(at_.out, row) + at);
}

void Wkv::change(Step& step, int row, const Columns& columns, float* state) {
  const auto [head, first, count] = columns;
  const auto in_head = [&, head = head](View view) { return step.row_at(view, row) + head * keys_; };
  const WkvToken token{in_head(at_.r), in_head(at_.keep), in_head(at_.k), in_head(at_.removed), in_head(at_.loss), keys_, kColumns};
  step.k.wkv(token, state, count, in_head(at_.v) + first, in_head(at_.out) + first);
}

Mamba::Mamba(Plan& plan, Views at, Shape shape, Weights weights)
    : HeadStates(plan, shape.heads, shape.keys, shape.values), at_(at), shape_(shape), weights_(std::move(weights)) {
  const size_t heads = (size_t)shape.heads;
  if (shape.groups <= 0 || shape.heads % shape.groups || weights_.a.size() != heads || weights_.dt.size() != heads ||
      weights_.skip.size() != heads)
    throw std::invalid_argument("Mamba 2: these heads are not supported");
}

void Mamba::prepare(Step& step) {
  HeadStates::prepare(step);
  keep_.resize((size_t)step.batch.rows * heads_);
  step_.resize(keep_.size());
}

void Mamba::begin(Step& step, int thread) {
  for (int row = thread; row < step.batch.rows; row += step.pool.size())
    step.k.keep_and_step(step.row_at(at_.dt, row), weights_.dt.data(), weights_.a.data(), heads_,
                         keep_.data() + (size_t)row * heads_, step_.data() + (size_t)row * heads_);
}

void Mamba::change(Step& step, int row, const Columns& columns, float* state) {
  const auto [head, first, count] = columns;
  const float* v = step.row_at(at_.vkq, row);
  const float* k = v + heads_ * values_ + head / (heads_ / shape_.groups) * keys_;
  const size_t i = (size_t)row * heads_ + head;
  const MambaToken token{k + shape_.groups * keys_, k, keep_[i], step_[i], weights_.skip[head], keys_, kColumns};
  const int at = head * values_ + first;
  step.k.mamba(token, state, count, v + at, step.row_at(at_.out, row) + at);
}

Mamba1::Mamba1(Plan& plan, Views at, int keys, int columns, Weights weights)
    : HeadStates(plan, 1, keys, columns), at_(at), weights_(std::move(weights)) {
  if (weights_.a.size() != (size_t)keys * columns || weights_.skip.size() != (size_t)columns)
    throw std::invalid_argument("Mamba 1: these weights do not fit");
}

void Mamba1::change(Step& step, int row, const Columns& columns, float* state) {
  const auto& [a, skip] = weights_;
  const Mamba1Token token{step.row_at(at_.x, row), step.row_at(at_.dt, row), step.row_at(at_.q, row), step.row_at(at_.k, row),
                          a.data(), skip.data(), keys_, values_, kColumns};
  step.k.mamba1(token, state, columns.first, columns.count, step.row_at(at_.out, row));
}

}  // namespace cutaway
