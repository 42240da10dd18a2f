// The sampling chain over one row of logits: the twin of src/cutaway/sampling/chain.py, bit for bit.
//
// Knows the stages as numbers; not Python, sequences, or where logits come from.
#pragma once
#include <stdint.h>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels.h"

namespace cutaway {

class Candidates;
struct Stage;
struct Row;
struct StageReport;

struct StageKind {
  const char* name;
  void (*apply)(Candidates& c, const Stage& stage, const Row& row, StageReport* report);
  bool heats = false;  // the temperature: what is done to logits before it, and what after
};

// Finds a stage by its name in sampling/stages.py. Throws std::invalid_argument where there is none.
const StageKind* stage_kind(const char* name);

struct Stage {
  const StageKind* kind;
  std::vector<double> numbers;                  // see sampler_stages.cpp
  std::vector<std::pair<int64_t, float>> bias;  // token id, what is added
  std::vector<int64_t> ids;                     // breakers
};

// What a sequence asks of every step.
struct Chain {
  bool greedy = false;
  std::vector<Stage> stages;
  bool history = false;             // some stage looks at the text so far
  std::vector<int64_t> prompt;      // where one does
  std::vector<int64_t> prompt_ids;  // its distinct ids, ascending
};

// What to note of a row beside its token. sampling/observe.py says more.
struct Observe {
  size_t top = 0;                // the likeliest tokens
  std::vector<uint32_t> track;   // others by their ids, below vocab
  bool stages = false;           // the ledger
  bool after_chain = false;      // the likeliest survivors, as many as `top`
};

struct Row {
  const Chain* chain;
  uint64_t seed;
  uint64_t place;               // position + redraw << 32
  std::vector<int64_t> output;  // ids, where the chain looks at them
  std::optional<Observe> observe;
  std::optional<uint32_t> forced;  // the token, where it is given; below vocab
  std::vector<uint32_t> mask;      // a bit per token id, set where it is allowed; empty: all are
};

// A token and its natural log-probability.
struct Likely {
  uint32_t id;
  double logprob;
};

struct StageReport {
  size_t survivors;
  double removed_mass;
  std::vector<uint32_t> top_removed;
  double log_sum;                       // of the survivors
  std::optional<float> min_kept_logit;  // where a token was removed
};

// sampling/observe.py says what these are.
struct Candidate {
  uint32_t id;
  float logit = 0, delta = 0;
  std::optional<size_t> removed_by = {};
  std::optional<double> final_logprob = {}, luck = {};
  size_t rank = 0;
};

struct Observation {
  double maximum, log_sum, entropy;
  size_t rank;
  std::optional<size_t> final_rank;
  std::optional<double> final_logprob;
  double final_log_sum;
  std::vector<Candidate> candidates;
  std::vector<StageReport> stages;
  std::array<uint32_t, kHistogram> logit_histogram;
  std::vector<Likely> after_chain;
};

struct Drawn {
  enum class Status { kDrawn, kNotFinite, kOutOfRange, kNothingAllowed } status;  // kOutOfRange: ask the twin
  uint32_t token_id, sampled_id;  // sampled_id: what is drawn here, whatever is forced
  size_t survivors;
  double logprob;
  uint64_t logits_hash;
  std::optional<Observation> observed;
};

// Choose a token from logits (vocab), which are left as they are. Two threads can share this for a
// row that is not observed: one draws with its logprob left out, the other takes the log_sum.
Drawn sample_row(const Kernels& k, const float* logits, size_t vocab, const Row& row, bool logprob = true);
double log_sum(const Kernels& k, const float* logits, size_t vocab);  // log Σ exp(logit); NaN is possible

// Read what a row's chain leaves, without a draw: the entropy of the survivors' probabilities, in nats, and,
// unless chances is null, the probabilities (vocab), written where there are survivors.
Drawn::Status read_distribution(const Kernels& k, const float* logits, size_t vocab, const Row& row, float* chances,
                                double* entropy);

// What a row of logits says of the token that follows, without a draw.
struct ReadRow {
  bool finite;     // if not, nothing below is set
  double logprob;  // of the next token
  size_t rank;     // of it; 1 is the likeliest
  std::vector<Likely> top;
};

// next: the id of the next token, below vocab; negative if there is none to look up.
ReadRow read_row(const Kernels& k, const float* logits, size_t vocab, int32_t next, size_t top);

}  // namespace cutaway
