// The recurrent states of texts.
//
// Knows states by slot, and where in memory each is; not whose text a slot holds, nor how a state changes.
#pragma once
#include <vector>

#include "memory.h"

namespace cutaway {

struct Step;

// A state has the numbers of all layers that keep one side by side, so that it is copied in one piece. A slot has a
// place in memory only from when a state is first stored there until it is freed; the place that was freed last is
// taken first.
class StateStore {
 public:
  explicit StateStore(int slots) : places_(slots, -1) {}
  // Reserve so many floats of every state for a layer, from `at` on. Returns where the next layer's begin. A second
  // plan on the same store claims the same again.
  size_t claim(size_t at, size_t floats);
  // Give the slots that a step stores to places, once, before any layer stores. Throws std::invalid_argument where a
  // sequence would continue from a state that was freed.
  void prepare(const Step& step);
  // A slot's floats; null where it has no place.
  float* state_at(int slot);
  int slots() const { return (int)places_.size(); }
  size_t bytes() const { return floats_ * sizeof(float); }
  bool is_empty() const { return floats_ == 0; }
  // Copy the source's state to the target; a source without a place frees the target's.
  void copy(int source, int target);
  void release(int slot);
  void take(int slot);

 private:
  std::vector<int32_t> places_, free_;  // by slot, -1: none; to be used again
  std::vector<Memory> memory_;          // pieces of so many places each
  size_t floats_ = 0, per_piece_ = 0;
  int next_ = 0;  // the first place that was never used
};

}  // namespace cutaway
