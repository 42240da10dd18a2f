#include "quantise.h"

#include <atomic>

#include "plain_arithmetic.h"

namespace cutaway {
namespace {

constexpr int kChunk = 16 * 256;  // numbers that a thread takes at once: they stay in its cache

void widen(Format from, const uint8_t* source, int count, float* out) {
  uint16_t halves[kChunk];
  if (from == F32) memcpy(out, source, 4 * (size_t)count);
  else memcpy(halves, source, 2 * (size_t)count);
  if (from == F16)
    for (int i = 0; i < count; i++) out[i] = from_half(halves[i]);
  if (from == BF16)
    for (int i = 0; i < count; i++) out[i] = float_of((uint32_t)halves[i] << 16);
}

int64_t width_of(Format from) { return from == F32 ? 4 : 2; }

float mean_square(Format from, const uint8_t* row, int64_t columns) {
  float sum = 0.0f, x[kChunk];
  for (int64_t start = 0; start < columns; start += kChunk) {
    const int count = (int)std::min<int64_t>(kChunk, columns - start);
    widen(from, row + start * width_of(from), count, x);
    sum = sum_of_squares(x, count, sum);
  }
  return sum / (float)columns;
}

}  // namespace

const QuantFormat* quant_format(std::string_view name) {
  for (const QuantFormat& format : kSmallFormats) if (format.name == name) return &format;
  for (const QuantFormat& format : kWideFormats) if (format.name == name) return &format;
  for (const QuantFormat& format : kTableFormats) if (format.name == name) return &format;
  return nullptr;
}

int64_t quantise(Pool& pool, Format from, const uint8_t* source, int64_t count, const QuantFormat& to,
                 const float* importance, int64_t columns, uint8_t* out) {
  // No chunk crosses the end of a row where there is importance.
  const int64_t row = importance ? columns : count, chunks = (row + kChunk - 1) / kChunk;
  std::atomic<int64_t> next{0}, bad{count};
  pool.run([&](int) {
    const PlainArithmetic plain;
    float x[kChunk];
    for (int64_t chunk; (chunk = next.fetch_add(1)) < count / row * chunks;) {
      const int64_t first = chunk / chunks * row, column = chunk % chunks * kChunk, start = first + column;
      const int numbers = (int)std::min<int64_t>(kChunk, row - column);
      widen(from, source + start * width_of(from), numbers, x);
      Importance of_these{nullptr, 0.0f};
      if (importance) of_these = {importance + column, mean_square(from, source + first * width_of(from), columns)};
      const int done = to.write(x, of_these, numbers, out + start / to.numbers * to.bytes);
      int64_t least = bad.load();
      while (done < numbers && start + done < least && !bad.compare_exchange_weak(least, start + done)) {}
    }
  }, Pool::Work::kUneven);
  return bad.load() < count ? bad.load() : -1;
}

}  // namespace cutaway
