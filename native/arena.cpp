#include "arena.h"

#include <string.h>

#include <stdexcept>

namespace cutaway {

Packed Arena::reserve(const std::string& format, int rows, int cols, float factor) {
  const Format f = format_of(format);
  const size_t bytes = bytes_of(f, rows, cols);
  if (bytes > memory_->size() - used_) throw std::invalid_argument("the arena is full");
  uint8_t* out = memory_->data() + used_;
  used_ += bytes;
  return {f, rows, cols, panel_bytes(f, cols), out, memory_, factor};
}

int Arena::rows_of(const Packed& packed, size_t bytes, int first) const {
  const size_t row = source_bytes(packed.format, 1, packed.cols);
  const size_t rows = bytes / row, left = packed.rows - first;
  if (first < 0 || first > packed.rows || first % kLanes || bytes % row || rows > left ||
      (rows < left && rows % kLanes))
    throw std::invalid_argument("these bytes are no whole panels of the matrix");
  return (int)rows;
}

int Arena::fill(Pool& pool, const Packed& packed, const RowBytes& source, int first, int rows) {
  const size_t at = packed.data - memory_->data();
  if (!memory_->is_file()) return pack_rows(pool, packed, source, first, rows, memory_->data() + at), 0;
  const size_t bytes = packed.panel * ((rows + kLanes - 1) / kLanes);
  if (piece_.size() < bytes) piece_ = Memory(bytes);
  if (rows % kLanes) memset(piece_.data(), 0, bytes);  // lanes without a row
  pack_rows(pool, packed, source, 0, rows, piece_.data());
  return memory_->write(at + first / kLanes * packed.panel, piece_.data(), bytes);
}

}  // namespace cutaway
