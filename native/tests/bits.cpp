// The bits contract without Python: tiny models in every format, on every tier of this machine,
// with several numbers of threads and rows per call. Prints one hash of the logits per format, which
// must be the same on every machine. The sanitizers run this program, and so does qemu.
//
// Usage: bits [tokens]. Exit code 1 where bits differ.
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "../quantise.h"
#include "checks.h"
#include "forced.h"

using namespace cutaway;

namespace {

const char* const kNames[] = {"Q4_0",   "Q4_1",    "Q5_0",  "Q5_1",    "Q8_0",   "Q2_K",  "Q3_K",
                              "Q4_K",   "Q5_K",    "Q6_K",  "IQ4_NL",  "IQ4_XS", "MXFP4", "NVFP4",
                              "IQ3_XXS", "IQ3_S",  "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ1_M",
                              "TQ1_0",  "TQ2_0",   "Q1_0",  "Q2_0",
                              "INT4_G32", "INT4_G64", "INT4_G128", "INT8_G32", "INT8_G64", "INT8_G128",
                              "AFFINE4_G32", "AFFINE4_G64", "AFFINE4_G128", "AFFINE8_G32", "AFFINE8_G64", "AFFINE8_G128",
                              "F16",    "BF16",  "F32",  "FP8_G32", "FP8_G64", "FP8_G128", "NF4"};
static_assert(std::size(kNames) == kFormats);

const char* const kWirings[] = {"", "other ", "recurrent ", "Mamba 1 ", "RWKV-7 "};
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
      TinyModel model(std::make_shared<Pool>(std::min(way.threads, kTestThreads)), choose_kernels(tier.c_str()), f, tokens, blocks, wiring, kv);
      const auto logits = force_tokens(model, way.tokens, way.rows, way.threads == 2);
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
    Pool single(1), three(kTestThreads);
    for (const float* of : {(const float*)nullptr, (const float*)weights.data()}) {
      const int64_t columns = of ? kCount : 0;
      wrong += quantise(single, F32, source, kCount, to, of, columns, first.data()) != -1;
      wrong += quantise(three, F32, source, kCount, to, of, columns, again.data()) != -1 || first != again;
      uint64_t hash = 0xcbf29ce484222325u;
      for (uint8_t byte : first) hash = (hash ^ byte) * 0x100000001b3u;
      printf("quantised to %s%s %016llx\n", name, of ? ", weighted," : "", (unsigned long long)hash);
    }
    const float saved = numbers[9000];
    numbers[9000] = __builtin_nanf("");
    const int64_t position = quantise(three, F32, source, kCount, to, nullptr, 0, again.data());
    wrong += position < 9000 - 255 || position > 9000;
    numbers[9000] = saved;
  }
  if (wrong) printf("quantising: %d checks failed\n", wrong);
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);  // who waits, or is stopped, sees how far it came
  const int tokens = argc > 1 ? atoi(argv[1]) : 40;  // more than the rows that matrix units ask for
  int wrong = check_quantise() + check_sampler();
#if !defined(__wasm__)  // it has one thread and no exceptions
  wrong += check_pool(1) + check_pool(2) + check_pool(3) + check_failed_jobs(1) + check_failed_jobs(2) + check_failed_jobs(3) +
           check_refusals() + check_prefetch();
#endif
  for (int f = 0; f < kFormats; f++) wrong += check_format((Format)f, f == Q4_0 ? 7 * tokens : tokens, Wiring::kLlama, kHalves16);
  using enum KvFormat;
  for (const Format f : {Q8_0, Q4_K, F32}) wrong += check_format(f, tokens, Wiring::kOther, {q8_0, q8_0});
  for (const KvFormats kv : {KvFormats{q5_1, q5_1}, {q4_0, q4_0}, {q8_0, q4_0}, {q4_0, f16}, {q5_1, q8_0}})
    wrong += check_format(F32, 2 * tokens, kv.values == q4_0 ? Wiring::kOther : Wiring::kLlama, kv);
  for (const Format f : {Q8_0, F32}) wrong += check_format(f, tokens, Wiring::kRecurrent, kHalves16);
  for (const Wiring wiring : {Wiring::kMamba1, Wiring::kRwkv}) wrong += check_format(F32, tokens, wiring, kHalves16);
  return wrong ? 1 : 0;
}
