// Ops that keep a recurrent state of each text.
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

}  // namespace cutaway
