// Records what happens to a row: the twin of src/cutaway/sampling/observe.py, bit for bit.
//
// Knows the row before the first stage, and the candidates after each; not how they were chosen.
#pragma once
#include "sampler_candidates.h"

namespace cutaway {

class Observer {
 public:
  // c: the whole row, before the first stage.
  Observer(const Kernels& k, const float* logits, const Row& row, Candidates& c);

  // Where the next stage writes its report; null where the ledger is not wanted.
  StageReport* report() { return row_.observe->stages ? &seen_.stages.emplace_back() : nullptr; }
  void begin_stage(const Stage& stage, const Candidates& c);
  void end_stage(const Candidates& c);
  // c: the survivors. token: what the row was turned into.
  Observation finish(uint32_t token, Candidates& c);

 private:
  Candidate& follow(uint32_t id);
  void place(uint32_t token, const Candidates& c);
  void luck();

  const Kernels& k_;
  const float* const logits_;
  const size_t vocab_;
  const Row& row_;
  size_t stage_ = 0;    // how many stages have been applied
  bool heated_ = false;  // the temperature is among them
  std::vector<std::pair<uint32_t, float>> cold_;  // ids and logits that the temperature was given
  size_t top_ = 0;  // how many of the first candidates are the likeliest
  Observation seen_{};
};

}  // namespace cutaway
