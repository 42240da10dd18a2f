// The sampling chain over one row of logits: the twin of src/cutaway/sampling/chain.py, bit for bit.
//
// Knows the stages as numbers. Refuses to know Python, sequences and where logits come from.
#pragma once
#include <stdint.h>

#include <utility>
#include <vector>

#include "kernels.h"

namespace cutaway {

struct Stage {
  enum class Kind { kBias, kPenalties, kTemperature, kTopK, kTopP, kMinP } kind;
  std::vector<std::pair<int64_t, float>> bias;      // token id, what is added
  float repetition = 1, presence = 0, frequency = 0;  // penalties
  double value = 0;  // the temperature (a float32), k, p, or the logarithm of min_p's p
};

// What a sequence asks of every step.
struct Chain {
  bool greedy = false;
  std::vector<Stage> stages;
  std::vector<int64_t> prompt;  // its distinct ids, where the chain has penalties
};

struct Row {
  const Chain* chain;
  uint64_t seed;
  uint32_t position;
  bool ledger;
  size_t top;                   // how many of the likeliest to tell
  std::vector<int64_t> output;  // ids, where the chain has penalties
};

// A token and its natural log-probability.
struct Likely {
  uint32_t id;
  double logprob;
};

struct StageReport {
  size_t survivors;
  double removed_mass;
  std::vector<uint32_t> victims;
};

struct Drawn {
  enum class Status { kDrawn, kNotFinite, kOutOfRange } status;  // the last: ask the twin
  uint32_t token_id;
  size_t survivors;
  double logprob;
  uint64_t row_hash;
  std::vector<StageReport> ledger;
  std::vector<Likely> model, chain;  // the likeliest before and after the chain, best first
  double chain_logprob;              // where those are asked for
};

// Choose a token from logits (vocab), which are left as they are.
Drawn sample_row(const Kernels& k, const float* logits, size_t vocab, const Row& row);

// What a row of logits says of the token that follows, without a draw.
struct ReadRow {
  bool finite;     // if not, nothing below is told
  double logprob;  // of the next token
  size_t rank;     // of it; 1 is the likeliest
  std::vector<Likely> top;
};

// next: the id of the next token, below vocab; negative if there is none to look up.
ReadRow read_row(const Kernels& k, const float* logits, size_t vocab, int32_t next, size_t top);

}  // namespace cutaway
