// A text read by a tiny model, for the checks that compare its logits.
#pragma once
#include <string.h>

#include <vector>

#include "tiny_model.h"

namespace cutaway {

// Teacher-forced logits of a text, `rows` tokens a call, beside a second sequence when `together`.
inline std::vector<float> force_tokens(TinyModel& model, int tokens, int rows, bool together) {
  const int blocks = (tokens + kKvBlock - 1) / kKvBlock, vocab = model.s.vocab;
  std::vector<int32_t> tables(2 * blocks);
  for (int i = 0; i < blocks; i++) tables[i] = together ? 2 * i + 1 : i, tables[blocks + i] = 2 * i;
  std::vector<float> all;
  for (int start = 0; start < tokens; start += rows) {
    std::vector<int32_t> token, position, sequence, wanted;
    const int stop = start + rows < tokens ? start + rows : tokens;
    for (int s = together ? 1 : 0; s >= 0; s--)
      for (int p = start; p < stop; p++) {
        if (s == 0) wanted.push_back((int)token.size());
        token.push_back((p * 7 + s * 5) % vocab), position.push_back(p), sequence.push_back(s);
      }
    const Batch batch{token.data(), position.data(), sequence.data(), tables.data(), wanted.data(),
                      (int)token.size(), 2, blocks, (int)wanted.size()};
    const float* logits = model.plan->run(batch);
    all.insert(all.end(), logits, logits + wanted.size() * vocab);
  }
  return all;
}

// How many of the logits that both have differ; -1: `b` has more than `a`.
inline int differing(const std::vector<float>& a, const std::vector<float>& b) {
  int count = 0;
  if (b.empty() || b.size() > a.size()) return -1;
  for (size_t i = 0; i < b.size(); i++) count += memcmp(&a[i], &b[i], 4) != 0;
  return count;
}

}  // namespace cutaway
