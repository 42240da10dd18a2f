#include "states.h"

#include <string.h>

#include <algorithm>
#include <stdexcept>

#include "plan.h"

namespace cutaway {
namespace {
constexpr size_t kPiece = 2u << 20;  // bytes that memory is taken in: a large page
}  // namespace

size_t StateStore::claim(size_t at, size_t floats) {
  const size_t end = at + (floats + 15) / 16 * 16;
  if (memory_.size() && end > floats_) throw std::invalid_argument("the states have no room for another layer");
  floats_ = std::max(floats_, end);
  return end;
}

void StateStore::take(int slot) {
  int32_t& place = places_[slot];
  if (place >= 0) return;
  if (!free_.empty()) {
    place = free_.back();
    free_.pop_back();
    return;
  }
  if (memory_.empty()) per_piece_ = std::max<size_t>(1, kPiece / bytes());
  if ((size_t)next_ >= per_piece_ * memory_.size()) memory_.emplace_back(per_piece_ * bytes());
  place = next_++;
}

float* StateStore::state_at(int slot) {
  const int place = places_[slot];
  if (place < 0) return nullptr;
  return (float*)memory_[place / per_piece_].data() + place % per_piece_ * floats_;
}

void StateStore::prepare(const Step& step) {
  if (is_empty()) return;
  for (const auto& segment : step.segments)
    if (segment.from >= 0 && places_[segment.from] < 0)
      throw std::invalid_argument("batch: a sequence goes on from a state that was freed");
  for (const auto& stored : step.stored) take(stored.slot);
}

void StateStore::copy(int source, int target) {
  if (places_[source] < 0) return release(target);
  take(target);
  if (source != target) memcpy(state_at(target), state_at(source), bytes());
}

void StateStore::release(int slot) {
  if (places_[slot] < 0) return;
  free_.push_back(places_[slot]);
  places_[slot] = -1;
}

}  // namespace cutaway
