// The sampler without Python: every stage on rows of every kind, on every tier of this machine and on
// several threads, which must draw and note the same. Prints one hash, the same on every machine.
#include "../sampler.h"

#include <stdio.h>
#include <string.h>

#include <bit>
#include <string>

#include "../pool.h"
#include "checks.h"

namespace cutaway {
namespace {

constexpr int kSizes[] = {1, 15, 16, 17, 33, 700, 5000, 9001};
constexpr const char* kKinds[] = {"logit_bias", "penalties", "dry", "constraint", "temperature", "top_k",
                                  "typical", "top_p", "min_p", "top_n_sigma", "xtc"};
constexpr int kKindCount = sizeof kKinds / sizeof *kKinds;

struct Noise {
  uint64_t state;
  uint32_t next() { return (uint32_t)((state = state * 6364136223846793005u + 1442695040888963407u) >> 32); }
  uint32_t draw_below(uint32_t n) { return next() % n; }
  double share() { return (next() + 0.5) * 0x1p-32; }
};

// Flat, peaked, on a grid (ties), all equal, huge, or with a number that is none.
std::vector<float> row_of(Noise& noise, int n) {
  const uint32_t kind = noise.draw_below(6);
  std::vector<float> row(n);
  for (float& x : row) {
    x = (float)(noise.share() + noise.share() - 1);
    if (kind == 1 && noise.draw_below(50) == 0) x += 20;
    if (kind == 2) x = (float)(int)(x * 8);
    if (kind == 3) x = 1;
    if (kind == 4) x *= 3e37f;
  }
  if (kind == 5) row[noise.draw_below((uint32_t)n)] = noise.draw_below(2) ? __builtin_nanf("") : __builtin_inff();
  return row;
}

// A stage's numbers, in the order of sampling/stages.py.
std::vector<double> numbers_of(const std::string& kind, Noise& noise) {
  if (kind == "penalties") return {1 + noise.share(), noise.share(), noise.share()};
  if (kind == "dry") return {noise.share(), 1 + noise.share(), (double)noise.draw_below(3), (double)noise.draw_below(20) - 1};
  if (kind == "temperature") return {2 * noise.share()};
  if (kind == "top_k") return {1.0 + noise.draw_below(3000)};
  if (kind == "min_p") return {-8 * noise.share()};
  if (kind == "top_n_sigma") return {2 * noise.share()};
  if (kind == "xtc") return {noise.share(), 0.5 * noise.share()};
  return {noise.share()};
}

Chain chain_of(Noise& noise, int vocab) {
  Chain chain{noise.draw_below(8) == 0, {}, true, {}, {}};
  for (int count = (int)noise.draw_below(5); count > 0; count--) {
    const char* kind = kKinds[noise.draw_below(kKindCount)];
    Stage stage{stage_kind(kind), numbers_of(kind, noise), {}, {2}};
    stage.bias = {{(int64_t)noise.draw_below((uint32_t)vocab), 2.5f}, {vocab, 1.0f}};
    chain.stages.push_back(std::move(stage));
  }
  for (int i = 0; i < 12; i++) chain.prompt.push_back(noise.draw_below(6));
  chain.prompt_ids = {0, 1, 2, 3, 4, 5};
  return chain;
}

Row asked_of(Noise& noise, const Chain& chain, int vocab) {
  Row row{&chain, noise.next(), noise.draw_below(1000), {1, 2, 3, 1, 2, (int64_t)vocab + 7}, {}, {}, {}};
  if (noise.draw_below(2)) row.observe = Observe{noise.draw_below(9), {noise.draw_below((uint32_t)vocab)}, true, true};
  if (noise.draw_below(8) == 0) row.forced = noise.draw_below((uint32_t)vocab);
  if (noise.draw_below(2)) {
    row.mask.resize(((size_t)vocab + 31) / 32);
    for (uint32_t& word : row.mask) word = noise.next() & noise.next();
  }
  return row;
}

uint64_t mix(uint64_t hash, uint64_t value) { return (hash ^ value) * 0x100000001b3u; }

uint64_t hash_of(const Drawn& d) {
  uint64_t hash = mix(mix(0xcbf29ce484222325u, (uint64_t)d.status), d.logits_hash);
  if (d.status != Drawn::Status::kDrawn) return hash;
  hash = mix(mix(mix(hash, d.token_id), d.sampled_id), d.survivors);
  hash = mix(hash, std::bit_cast<uint64_t>(d.logprob));
  if (!d.observed) return hash;
  hash = mix(hash, std::bit_cast<uint64_t>(d.observed->entropy));
  for (const Candidate& c : d.observed->candidates) hash = mix(mix(hash, c.id), c.rank);
  for (const StageReport& r : d.observed->stages) hash = mix(hash, std::bit_cast<uint64_t>(r.removed_mass));
  return hash;
}

uint64_t drawn_by(const Kernels& k, uint64_t seed) {
  Noise noise{seed};
  const int n = kSizes[seed % (sizeof kSizes / sizeof *kSizes)];
  const std::vector<float> logits = row_of(noise, n);
  const Chain chain = chain_of(noise, n);
  return hash_of(sample_row(k, logits.data(), (size_t)n, asked_of(noise, chain, n)));
}

}  // namespace

int check_sampler() {
  constexpr int kRows = 400;
  std::vector<uint64_t> first;
  int wrong = 0;
  for (const std::string& tier : tier_names()) {
    for (int threads = 1; threads <= kTestThreads; threads++) {
      std::vector<uint64_t> hashes(kRows);
      Pool pool(threads);
      pool.run([&](int thread) {
        for (int i = thread; i < kRows; i += pool.size()) hashes[i] = drawn_by(*choose_kernels(tier.c_str()), i);
      }, Pool::Work::kUneven);
      if (first.empty()) first = hashes;
      for (int i = 0; i < kRows; i++)
        if (hashes[i] != first[i]) wrong++, printf("sampler: row %d differs on %s\n", i, tier.c_str());
    }
  }
  uint64_t all = 0;
  for (uint64_t hash : first) all = mix(all, hash);
  printf("sampler %016llx\n", (unsigned long long)all);
  return wrong;
}

}  // namespace cutaway
