// Packs weights losslessly into the panels that the kernels read.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "formats.h"
#include "memory.h"
#include "pool.h"

namespace cutaway {

struct Packed {
  Format format;
  int rows, cols;
  size_t panel;  // bytes
  const uint8_t* data;
  std::shared_ptr<Memory> owner;
  float factor = 1;  // what products with the whole matrix are multiplied by

  int panels() const { return (rows + kLanes - 1) / kLanes; }
  size_t bytes() const { return panel * panels(); }
  // One row as floats (cols of them), times the factor.
  void decode_row(int row, float* out) const;
};

// The format that GGUF calls "Q4_1"; throws std::invalid_argument for an unknown name.
Format format_of(const std::string& name);
const char* format_name(Format format);
// Bytes of a matrix as GGUF stores it; throws std::invalid_argument for impossible shapes.
size_t source_bytes(Format format, int rows, int cols);
size_t packed_bytes(Format format, int rows, int cols);
// The patterns of codes of IQ1, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS or IQ3_S (grids.h); throws std::invalid_argument.
std::vector<uint16_t> patterns(const std::string& name);
float half_to_float(uint16_t h);
// A lane of a panel as floats, exactly as the file's decoder gives them.
void unpack_row(Format format, const uint8_t* panel, int lane, int cols, float* out);
// One row as the file has it, as floats: those of decode_row.
void decode_stored_row(Format format, const uint8_t* row, int cols, float* out);
// Rows as the file has them: some of their bytes, where they are or in `buffer` once they were read into it.
struct RowBytes {
  std::function<const uint8_t*(size_t first, size_t bytes, std::vector<uint8_t>& buffer)> find;
  size_t at_once = 0;  // about how many a thread is to ask for
};
// Lay rows first … first + rows - 1 of a matrix into its panels; first is a panel's.
void pack_rows(Pool& pool, const Packed& packed, const RowBytes& source, int first, int rows, uint8_t* out);

}  // namespace cutaway
