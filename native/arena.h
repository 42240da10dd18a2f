// One allocation for all matrices of a model, in the order in which they are read; in a file where one is given.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "pack.h"

namespace cutaway {

class Arena {
 public:
  // file: the descriptor of a file of `bytes` bytes; the arena has one of its own.
  Arena(size_t bytes, std::optional<int> file)
      : memory_(file ? std::make_shared<Memory>(bytes, *file) : std::make_shared<Memory>(bytes)) {}
  // Bytes of a matrix in the arena: whole cache lines.
  static size_t bytes_of(Format format, int rows, int cols) { return (packed_bytes(format, rows, cols) + 63) / 64 * 64; }
  // Room for a matrix. This and the next two throw std::invalid_argument where something does not fit.
  Packed reserve(const std::string& format, int rows, int cols, float factor = 1);
  // How many rows, from `first` on, these bytes of the file are: whole panels, or all that are left.
  int rows_of(const Packed& packed, size_t bytes, int first) const;
  // Pack `rows` rows, from `first` on. Returns 0, or the errno of a failed write.
  int fill(Pool& pool, const Packed& packed, const RowBytes& source, int first, int rows);
  uint8_t* data() const { return memory_->data(); }  // where the first matrix begins

 private:
  std::shared_ptr<Memory> memory_;
  Memory piece_;  // what is packed before it is written to the file
  size_t used_ = 0;
};

}  // namespace cutaway
