// The keys and values of layers that are stored alike.
//
// Knows KV blocks by id, and where in memory each is; not whose text a block holds.
#pragma once
#include <vector>

#include "memory.h"

namespace cutaway {

struct Step;

// A KV block has kKvBlock tokens of all these layers side by side, so that memory grows with the blocks in use and
// a block is copied in one piece. Where the layers see a window, a block has a place in memory only from when a row
// is first stored in it until it is freed; the place that was freed last is taken first.
class KvStore {
 public:
  explicit KvStore(int blocks) : blocks_(blocks) {}
  // Reserve bytes of every block for a layer, from `at` on. Returns where in a block the next layer's bytes begin.
  // window 0: the layer sees all. A second plan on the same store claims the same bytes again.
  size_t claim(size_t at, size_t bytes, int window);
  // Give the blocks of a step's rows places, once, before any layer stores. Throws std::invalid_argument where a row
  // would see a block that was freed.
  void prepare(const Step& step);
  // A sequence's blocks by position / kKvBlock, as indices for `block_at`. Of a store with a window those before the
  // chunk in which the rows of this step begin to see are not valid; those in that chunk, which no row sees,
  // stand for some block that one does.
  const int32_t* table(const Step& step, int sequence) const;
  uint16_t* block_at(int place) const { return (uint16_t*)(memory_.data() + (size_t)place * bytes_); }
  size_t bytes() const { return bytes_; }
  // Copy the source block to the target; a source without a place frees the target's.
  void copy(int source, int target);
  void release(int block);
  // A block's bytes() bytes; null where it has no place, unless `find` gives it one.
  uint8_t* memory(int block, bool find);
  // How many blocks have a place.
  int count() const { return next_ - (int)free_.size(); }

 private:
  void reserve();
  int take(int block);

  const int blocks_;
  int window_ = 0;  // the widest of its layers; 0: a block's place is its id
  size_t bytes_ = 0;
  Memory memory_;
  std::vector<int32_t> places_, free_, tables_;  // by block, -1: none; to be used again; of the step's sequences
  int next_ = 0;                                 // the first place that was never used
};

}  // namespace cutaway
