// The bits contract without Python: tiny models in every format, on every tier of this machine,
// with several numbers of threads and rows per call. Prints one hash of the logits per format, which
// must be the same on every machine. The sanitizers run this program, and so does qemu.
//
// Usage: bits [tokens]. Exit code 1 where bits differ.
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string>
#include <thread>

#include "../quantise.h"
#include "checks.h"
#include "tiny_model.h"

using namespace cutaway;

namespace {

const char* const kNames[] = {"Q4_0",   "Q4_1",    "Q5_0",  "Q5_1",    "Q8_0",   "Q2_K",  "Q3_K",
                              "Q4_K",   "Q5_K",    "Q6_K",  "IQ4_NL",  "IQ4_XS", "MXFP4", "NVFP4",
                              "IQ3_XXS", "IQ3_S",  "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ1_M",
                              "TQ1_0",  "TQ2_0",   "Q1_0",  "Q2_0",
                              "INT4_G32", "INT4_G64", "INT4_G128", "INT8_G32", "INT8_G64", "INT8_G128",
                              "F16",    "BF16",  "F32",  "FP8_G32", "FP8_G64", "FP8_G128", "NF4"};
static_assert(std::size(kNames) == kFormats);

const char* const kWirings[] = {"", "other ", "recurrent "};
const char* const kKvNames[] = {"f16", "q8_0", "q5_1", "q4_0"};
constexpr KvFormats kHalves16 = {KvFormat::f16, KvFormat::f16};

uint64_t hash_of(const std::vector<float>& logits) {  // FNV-1a over the bits
  uint64_t hash = 0xcbf29ce484222325u;
  for (float x : logits) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    hash = (hash ^ bits) * 0x100000001b3u;
  }
  return hash;
}

// Teacher-forced logits of a text, `rows` tokens a call, beside a second sequence when `together`.
std::vector<float> forced(TinyModel& model, int tokens, int rows, bool together) {
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
int differing(const std::vector<float>& a, const std::vector<float>& b) {
  int count = 0;
  if (b.empty() || b.size() > a.size()) return -1;
  for (size_t i = 0; i < b.size(); i++) count += memcmp(&a[i], &b[i], 4) != 0;
  return count;
}

// How a text is read: threads, rows per call, and how much of it. All of it once, and where tiles of many rows
// are; tiles of every height (16, 2, 1) elsewhere; then what threads and company need. Sanitizers have the time for that.
struct Way { int threads, rows, tokens; };

std::vector<Way> ways(int tokens, bool is_whole) {
  const int read = is_whole ? tokens : std::min(tokens, 19);
  return {{1, read, read}, {2, 7, std::min(tokens, 9)}, {3, 1, std::min(tokens, 3)}};
}

// All ways for one format; returns how many of them differ from the first.
int check_format(Format f, int tokens, Wiring wiring, KvFormats kv) {
  const std::string of_kv = std::string(", keys ") + kKvNames[(int)kv.keys] + ", values " + kKvNames[(int)kv.values];
  const std::string name = std::string(kWirings[(int)wiring]) + kNames[f] + (kv.keys == KvFormat::f16 ? "" : of_kv);
  std::vector<float> first;
  int wrong = 0;
  for (const std::string& tier : tier_names()) {
    const bool has_tiles = tier.starts_with("amx");
    for (const Way& way : ways(tokens, first.empty() || has_tiles)) {
      const int blocks = 2 * ((tokens + kKvBlock - 1) / kKvBlock);
      TinyModel model(std::make_shared<Pool>(way.threads), choose_kernels(tier.c_str()), f, tokens, blocks, wiring, kv);
      const auto logits = forced(model, way.tokens, way.rows, way.threads == 2);
      if (first.empty()) first = logits;
      if (const int count = differing(first, logits)) {
        wrong++;
        printf("%s: %d of %zu logits differ on %s with %d threads, %d rows per call\n", name.c_str(), count,
               logits.size(), tier.c_str(), way.threads, way.rows);
      }
    }
  }
  double sum = 0;
  for (float x : first) sum += x < 0 ? -x : x;
  if (!(sum > 0 && sum < 1e6 * (double)first.size())) wrong++, printf("%s: not sane numbers\n", name.c_str());
  printf("%s %016llx\n", name.c_str(), (unsigned long long)hash_of(first));
  return wrong;
}

// Jobs in quick succession and after pauses in which the workers fall asleep. The pool may back off to
// fewer threads on a busy machine, never within a job: each job must reach every thread that it has.
int check_pool(int threads) {
  Pool pool(threads);
  std::vector<int> seen(threads);
  int missed = 0;
  for (int job = 1; job <= 300; job++) {
    pool.run([&](int id) {
      seen[id] = job;
      pool.barrier();
      if (id == 0) missed += std::count(seen.begin(), seen.begin() + pool.size(), job) != pool.size();
    });
    if (job % 100 == 99) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (missed) printf("pool of %d: %d of 300 jobs did not reach all their threads\n", threads, missed);
  return missed != 0;
}

int check_refusals() {
  TinyModel model(std::make_shared<Pool>(2), choose_kernels(""), Q4_0, 64, 2);
  const auto before = forced(model, 32, 32, true);
  int wrong = 0;
  const int32_t ok[] = {0, 1}, one[] = {0, 0}, far[] = {0, 64}, big[] = {50, 50}, minus[] = {-1, 0};
  const auto refuse = [&](const int32_t* token, const int32_t* position, const int32_t* sequence,
                          const int32_t* table, const int32_t* wanted) {
    try {
      model.plan->run({token, position, sequence, table, wanted, 2, 1, 2, 2});
      wrong++, printf("a bad batch was not refused\n");
    } catch (const std::invalid_argument&) {
    }
  };
  refuse(big, ok, one, ok, ok), refuse(minus, ok, one, ok, ok), refuse(ok, far, one, ok, ok);
  refuse(ok, one, one, ok, ok), refuse(ok, ok, ok, ok, ok), refuse(ok, ok, one, minus, ok);
  refuse(ok, ok, one, big, ok), refuse(ok, ok, one, ok, big), refuse(ok, ok, one, ok, minus);
  const int32_t repeated[] = {0, 0, 1, 1, 0, 1, 0, 1, 0};  // more logits than rows
  try {
    model.plan->run({ok, ok, one, ok, repeated, 2, 1, 2, 9});
  } catch (const std::invalid_argument&) {
  }
  return wrong + (differing(before, forced(model, 32, 32, true)) != 0);
}

// Three choices that take so many seconds in a step, others' work beside them: the fastest is found, where
// it is clearly faster, and steps of many rows are not tried.
int check_prefetch() {
  int wrong = 0;
  const auto found = [&](int rows, std::vector<double> seconds) {
    PrefetchTrial trial("");
    for (int step = 0; step < 40; step++) {
      const bool is_disturbed = step % 5 == 0, is_another = step % 11 == 10;
      const Ahead ahead = trial.begin(is_another ? 9 : rows, rows);
      trial.end(is_another ? 0.001 : seconds[(int)ahead] * (is_disturbed ? 2 : 1));
    }
    return trial.describe();
  };
  const auto expect = [&](const std::string& ours, const char* theirs) {
    if (ours != theirs) wrong++, printf("prefetch: %s, not %s\n", ours.c_str(), theirs);
  };
  expect(found(1, {3, 2, 1}), "far, not known yet, not known yet");
  expect(found(2, {3, 1, 2}), "not known yet, near, not known yet");
  expect(found(8, {1, 2, 3}), "not known yet, not known yet, none");
  expect(found(1, {1, 0.99, 0.99}), "none, not known yet, not known yet");
  expect(found(8, {0.99, 0.99, 1}), "not known yet, not known yet, far");
  expect(found(300, {1, 2, 3}), "not known yet, not known yet, not known yet");
  expect(PrefetchTrial("near").describe(), "near, near, near");
  return wrong;
}

// Numbers of every size in each format that is written, on several threads, without and with importance;
// NaN must be found.
int check_quantise() {
  constexpr int kCount = 256 * 41;
  std::vector<float> numbers(kCount);
  for (int i = 0; i < kCount; i++) {
    const uint32_t noise = (uint32_t)i * 2654435761u, bits = (noise >> 9 | 0x3F800000u) - (uint32_t)(i % 97 << 23);
    memcpy(&numbers[i], &bits, 4);
    numbers[i] = (numbers[i] - 1.4f) * (i % 7 == 0 ? 0 : 1);
  }
  const auto* source = (const uint8_t*)numbers.data();
  int wrong = 0;
  std::vector<float> weights(numbers.rbegin(), numbers.rend());
  for (float& weight : weights) weight = weight < 0 ? -weight : weight;
  for (const char* name : {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
                           "IQ4_XS", "MXFP4", "F16", "BF16", "F32"}) {
    const QuantFormat& to = *quant_format(name);
    std::vector<uint8_t> first(kCount / to.numbers * to.bytes), again = first;
    Pool one(1), three(3);
    for (const float* of : {(const float*)nullptr, (const float*)weights.data()}) {
      const int64_t columns = of ? kCount : 0;
      wrong += quantise(one, F32, source, kCount, to, of, columns, first.data()) != -1;
      wrong += quantise(three, F32, source, kCount, to, of, columns, again.data()) != -1 || first != again;
      uint64_t hash = 0xcbf29ce484222325u;
      for (uint8_t byte : first) hash = (hash ^ byte) * 0x100000001b3u;
      printf("quantised to %s%s %016llx\n", name, of ? ", weighted," : "", (unsigned long long)hash);
    }
    const float kept = numbers[9000];
    numbers[9000] = __builtin_nanf("");
    const int64_t found = quantise(three, F32, source, kCount, to, nullptr, 0, again.data());
    wrong += found < 9000 - 255 || found > 9000;
    numbers[9000] = kept;
  }
  if (wrong) printf("quantising: %d checks failed\n", wrong);
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);  // who waits, or is stopped, sees how far it came
  const int tokens = argc > 1 ? atoi(argv[1]) : 40;  // more than the rows that matrix units ask for
  int wrong = check_pool(1) + check_pool(2) + check_pool(3) + check_refusals() + check_quantise() + check_sampler() +
              check_prefetch();
  for (int f = 0; f < kFormats; f++) wrong += check_format((Format)f, f == Q4_0 ? 7 * tokens : tokens, Wiring::kLlama, kHalves16);
  using enum KvFormat;
  for (const Format f : {Q8_0, Q4_K, F32}) wrong += check_format(f, tokens, Wiring::kOther, {q8_0, q8_0});
  for (const KvFormats kv : {KvFormats{q5_1, q5_1}, {q4_0, q4_0}, {q8_0, q4_0}, {q4_0, f16}, {q5_1, q8_0}})
    wrong += check_format(F32, 2 * tokens, kv.values == q4_0 ? Wiring::kOther : Wiring::kLlama, kv);
  for (const Format f : {Q8_0, F32}) wrong += check_format(f, tokens, Wiring::kRecurrent, kHalves16);
  return wrong ? 1 : 0;
}
