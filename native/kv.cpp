#include "kv.h"

#include <string.h>

#include <algorithm>
#include <stdexcept>

#include "plan.h"

namespace cutaway {

size_t KvStore::claim(size_t at, size_t bytes, int window) {
  const size_t end = at + bytes;
  if (memory_.size() && end > bytes_) throw std::invalid_argument("the KV blocks have no room for another layer");
  bytes_ = std::max(bytes_, end);
  window_ = std::max(window_, window);
  return end;
}

void KvStore::reserve() {
  if (memory_.size() || !bytes_) return;
  if (window_) places_.assign(blocks_, -1);
  memory_ = Memory(bytes_ * blocks_);  // the last: where memory ends before, all is tried again
}

int KvStore::take(int block) {
  int32_t& place = places_[block];
  if (place >= 0) return place;
  if (free_.empty()) return place = next_++;
  place = free_.back();
  free_.pop_back();
  return place;
}

void KvStore::prepare(const Step& step) {
  reserve();
  if (!window_) return;
  const Batch& b = step.batch;
  constexpr int kChunkBlocks = kKvChunk / kKvBlock;
  tables_.resize((size_t)b.table_rows * b.table_cols);
  for (int i = 0; i < b.rows; i++) take(b.tables[(size_t)b.sequences[i] * b.table_cols + b.positions[i] / kKvBlock]);
  for (const auto& segment : step.segments) {
    const size_t row = (size_t)segment.sequence * b.table_cols;
    const int end = segment.first + segment.rows;
    const int first = std::max(0, b.window_ends[segment.first] - window_ + 1) / kKvBlock;
    const int seen = *std::max_element(b.limits + segment.first, b.limits + end);
    const int last = std::max(seen, b.positions[end - 1]) / kKvBlock;  // limits may lie before what is stored
    for (int j = first; j <= last; j++) {
      tables_[row + j] = places_[b.tables[row + j]];
      if (tables_[row + j] < 0) throw std::invalid_argument("batch: a row sees a KV block that was freed");
    }
    for (int j = first / kChunkBlocks * kChunkBlocks; j < first; j++) tables_[row + j] = tables_[row + first];
  }
}

const int32_t* KvStore::table(const Step& step, int sequence) const {
  const size_t row = (size_t)sequence * step.batch.table_cols;
  return (window_ ? tables_.data() : step.batch.tables) + row;
}

void KvStore::copy(int source, int target) {
  reserve();
  if (!window_) {
    if (bytes_) memcpy(block_at(target), block_at(source), bytes_);
  } else if (places_[source] < 0) {
    release(target);
  } else {
    memcpy(block_at(take(target)), block_at(places_[source]), bytes_);
  }
}

uint8_t* KvStore::memory(int block, bool find) {
  reserve();
  if (!window_) return bytes_ ? (uint8_t*)block_at(block) : nullptr;
  if (places_[block] < 0 && !find) return nullptr;
  return (uint8_t*)block_at(take(block));
}

void KvStore::release(int block) {
  reserve();
  if (!window_ || places_[block] < 0) return;
  free_.push_back(places_[block]);
  places_[block] = -1;
}

}  // namespace cutaway
