// What a trace wants to know of a row: the twin of src/cutaway/sampling/look.py, bit for bit.
//
// Knows the row before the first stage, and who is in after each. Refuses to know how they were chosen.
#pragma once
#include "sampler_candidates.h"

namespace cutaway {

class Onlooker {
 public:
  // c: the whole row, before the first stage.
  Onlooker(const Kernels& k, const float* logits, const Row& row, Candidates& c);

  void after(size_t stage, const Candidates& c);
  // c: the survivors. token: what the row was turned into.
  Observed tell(uint32_t token, Candidates& c);

 private:
  Candidate& follow(uint32_t id);
  Candidate& chosen(uint32_t id);
  float delta(const Candidate& it) const;
  void luck();

  const Kernels& k_;
  const float* const logits_;
  const size_t vocab_;
  const Row& row_;
  size_t top_ = 0;  // the first so many candidates are the likeliest
  Observed seen_{};
};

}  // namespace cutaway
