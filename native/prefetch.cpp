#include "prefetch.h"

#include <stdexcept>
#include <utility>

namespace cutaway {
namespace {

constexpr const char* kNames[] = {"none", "near", "far"};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

PrefetchTrial::PrefetchTrial(const std::string& forced) : forced_(!forced.empty()) {
  if (!forced_) return;
  const auto* name = std::find(std::begin(kNames), std::end(kNames), forced);
  if (name == std::end(kNames))
    throw std::invalid_argument("prefetch '" + forced + "' is not one of none, near, far");
  for (Kind& kind : kinds_) kind.best = (Ahead)(name - kNames);
}

Ahead PrefetchTrial::begin(int rows, int logits) {
  Kind& kind = kinds_[std::clamp(rows, 1, 3) - 1];
  timed_ = nullptr;
  if (forced_ || kind.is_known() || rows > kMostRows) return kind.best;
  if (rows != rows_ || logits != logits_) rows_ = rows, logits_ = logits, turn_ = 0;
  timed_ = &kind;
  return (Ahead)turn_;
}

void PrefetchTrial::end(double seconds) {
  Kind* const kind = std::exchange(timed_, nullptr);
  if (!kind) return;
  round_[turn_] = seconds;
  turn_ = (turn_ + 1) % kChoices;
  if (turn_) return;
  for (int i = 0; i < kChoices; i++) kind->rounds[i].push_back(round_[i]);
  if (kind->is_known()) conclude(*kind);
}

void PrefetchTrial::conclude(Kind& kind) const {
  double least = kClearly * median(kind.rounds[(int)kind.best]);
  for (int i = 0; i < kChoices; i++)
    if (const double seconds = median(kind.rounds[i]); seconds < least) kind.best = (Ahead)i, least = seconds;
}

std::string PrefetchTrial::describe() const {
  std::string text;
  for (const Kind& kind : kinds_)
    text += (text.empty() ? "" : ", ") + std::string(forced_ || kind.is_known() ? kNames[(int)kind.best] : "not known yet");
  return text;
}

}  // namespace cutaway
