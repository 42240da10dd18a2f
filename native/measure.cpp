#include "measure.h"

#include <string.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cutaway {
namespace {

using Clock = std::chrono::steady_clock;
typedef uint64_t Vector __attribute__((vector_size(16)));  // a line is four

constexpr size_t kLeastRead = 256 << 20;  // bytes of a run, so that waking the threads does not count
constexpr double kLeastTime = 0.02;       // seconds of a run of arithmetic

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The sum of all threads' rates; work() does some of it and returns how much.
template <class Work> double rate(Pool& pool, const Work& work) {
  std::vector<double> rates(pool.size());
  pool.run([&](int thread) {
    double done = work(thread), elapsed = 0;  // the first call warms up
    const auto start = Clock::now();
    for (done = 0; elapsed < kLeastTime; elapsed = seconds_since(start)) done += work(thread);
    rates[thread] = done / elapsed;
  });
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

template <int S> void read_streams(const uint8_t* data, size_t bytes) {
  const size_t part = bytes / S / 64 * 64;
  Vector sum[4] = {};  // in registers, each a chain of its own
  for (size_t i = 0; i < part; i += 64)
    for (int s = 0; s < S; s++) {
      const Vector* line = (const Vector*)(data + s * part + i);
      for (int j = 0; j < 4; j++) sum[j] ^= line[j];
    }
  for (Vector v : sum) asm volatile("" : : "r"(v[0] ^ v[1]));
}

void read(const uint8_t* data, size_t bytes, int streams) {
  switch (streams) {
    case 1: return read_streams<1>(data, bytes);
    case 2: return read_streams<2>(data, bytes);
    case 4: return read_streams<4>(data, bytes);
    case 8: return read_streams<8>(data, bytes);
    default: throw std::invalid_argument("streams must be 1, 2, 4 or 8");
  }
}

#if defined(__x86_64__)

constexpr int kChains = 12;  // enough to hide the latency
constexpr int kTurns = 1000;

// Unsigned by signed bytes, four products to an int32, as one instruction: 128 operations.
__attribute__((target("avx512f,avx512bw,avx512vnni"))) double dots_avx512(int) {
  __m512i sum[kChains] = {}, w = _mm512_set1_epi8(3), x = _mm512_set1_epi8(5);
  for (int i = 0; i < kChains; i++) asm volatile("" : "+v"(sum[i]));  // or they would all be one
  for (int turn = 0; turn < kTurns; turn++)
    for (int i = 0; i < kChains; i++) sum[i] = _mm512_dpbusd_epi32(sum[i], w, x);
  for (int i = 0; i < kChains; i++) asm volatile("" : : "v"(sum[i]));
  return 128.0 * kTurns * kChains;
}

// 16 x 16 sums of 64 products each: 32,768 operations.
__attribute__((target("avx512f"))) double dots_amx(int) {
  struct alignas(64) Shape { uint8_t palette = 1, start = 0, unused[14] = {}; uint16_t width[16] = {}; uint8_t rows[16] = {}; } s;
  for (int i = 0; i < 6; i++) s.rows[i] = 16, s.width[i] = 64;
  asm volatile("ldtilecfg %0" : : "m"(s));
  for (int turn = 0; turn < kTurns; turn++)
    asm volatile("tdpbssd %%tmm5, %%tmm4, %%tmm0\n\ttdpbssd %%tmm5, %%tmm4, %%tmm1\n\t"
                 "tdpbssd %%tmm5, %%tmm4, %%tmm2\n\ttdpbssd %%tmm5, %%tmm4, %%tmm3" : :);
  asm volatile("tilerelease");
  return 32768.0 * kTurns * 4;
}

// The same as dots_avx512 with half as many numbers: 64 operations.
__attribute__((target("avx2,avxvnni"))) double dots_avxvnni(int) {
  __m256i sum[kChains] = {}, w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(5);
  for (int i = 0; i < kChains; i++) asm volatile("" : "+x"(sum[i]));
  for (int turn = 0; turn < kTurns; turn++)
    for (int i = 0; i < kChains; i++) sum[i] = _mm256_dpbusd_avx_epi32(sum[i], w, x);
  for (int i = 0; i < kChains; i++) asm volatile("" : : "x"(sum[i]));
  return 64.0 * kTurns * kChains;
}

// Four of those, for small codes: products are added up in 16 bits, then once in 32.
__attribute__((target("avx2"))) double dots_avx2(int) {
  __m256i sum[kChains] = {}, w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(5);
  const __m256i unit_pairs = _mm256_set1_epi16(1);
  for (int turn = 0; turn < kTurns; turn++)
    for (int i = 0; i < kChains; i++) {
      __m256i pairs = _mm256_setzero_si256();
      for (int j = 0; j < 4; j++) {
        asm volatile("" : "+x"(w));  // or the product would be taken once for all
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w, x));
      }
      sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(pairs, unit_pairs));
    }
  for (int i = 0; i < kChains; i++) asm volatile("" : : "x"(sum[i]));
  return 256.0 * kTurns * kChains;
}

#endif

}  // namespace

ReadProbe::ReadProbe(Pool& pool, size_t bytes) : memory_(std::max(bytes, (size_t)1 << 20)) {
  const size_t part = memory_.size() / pool.size();
  pool.run([&](int thread) { memset(memory_.data() + thread * part, 1, part); });  // else: one page of zeros
}

double ReadProbe::run(Pool& pool, int streams) const {
  const size_t part = memory_.size() / pool.size() / 64 * 64;
  const size_t passes = (kLeastRead + memory_.size() - 1) / memory_.size();
  read(memory_.data(), 4096, streams);  // refuses what is not a number of streams, on this thread
  const auto start = Clock::now();
  pool.run([&](int thread) {
    for (size_t i = 0; i < passes; i++) read(memory_.data() + thread * part, part, streams);
  });
  return (double)passes * part * pool.size() / seconds_since(start);
}

double tile_rate(Pool& pool, const Kernels& kernels, const Packed& weight) {
  constexpr int tiles = 2, rows = tiles * kTileRows[0], sweeps = 32;
  const bool floats = is_float(weight.format);
  const size_t stride = floats ? weight.cols : weight.cols / kQuant;
  const std::vector<float> unit_row(weight.cols, 1.0f);
  std::vector<float> x(floats ? rows * stride : 0, 1.0f);
  std::vector<ActBlock> act_rows(floats ? 0 : rows * stride);
  for (int r = 0; !floats && r < rows; r++)
    kernels.quantise(unit_row.data(), weight.cols, act_row(act_rows.data(), stride, r, rows));
  const auto rows_of = [&](int tile) {
    const size_t first = tile * kTileRows[0] * stride;
    return floats ? (const void*)(x.data() + first) : act_rows.data() + first;
  };
  return rate(pool, [&](int) {
    alignas(64) float out[rows * kLanes];
    for (int i = 0; i < sweeps; i++)
      if (kernels.tiles[weight.format])
        kernels.tiles[weight.format](weight.data, (int)stride, {act_rows.data(), stride * kTileRows[0], tiles},
                                     Ahead::kNone, out);
      else
        for (int t = 0; t < tiles; t++)
          kernels.tile[weight.format][0](weight.data, (int)stride, rows_of(t), stride, Ahead::kNone, out + t * kTileRows[0] * kLanes);
    asm volatile("" : : "r"(out) : "memory");
    return 2.0 * sweeps * rows * kLanes * weight.cols;
  });
}

double instruction_rate([[maybe_unused]] Pool& pool, [[maybe_unused]] const std::string& tier) {
#if defined(__x86_64__)
  if (tier == "amx") return rate(pool, dots_amx);
  if (tier == "avx512") return rate(pool, dots_avx512);
  if (tier == "avxvnni") return rate(pool, dots_avxvnni);
  if (tier == "avx2") return rate(pool, dots_avx2);
#endif
  return 0;
}

}  // namespace cutaway
