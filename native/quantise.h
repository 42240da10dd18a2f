// Numbers into a file's quant blocks: the very bytes that ggml's quantisers give.
//
// A quant block depends on its own numbers alone, and with an importance matrix on its row's, in
// arithmetic that is written down, so that the bytes are the same whatever the threads and the
// instruction set. Source: `ggml_quantize_chunk` of ggml.
#pragma once
#include "formats.h"
#include "pool.h"
#include "quantise_formats.h"

namespace cutaway {

// The format that GGUF calls "Q4_K"; null where it cannot be written.
const QuantFormat* quant_format(std::string_view name);

// `count` numbers stored as F16, BF16 or F32, whole quant blocks of `to`, into `out`. importance: null, or
// a number for each of the `columns` of a row, of which `count` is a multiple. Returns -1, or the first
// number of the first quant block that holds one that is not finite or that `to` cannot hold; what `out`
// holds there means nothing.
int64_t quantise(Pool& pool, Format from, const uint8_t* source, int64_t count, const QuantFormat& to,
                 const float* importance, int64_t columns, uint8_t* out);

}  // namespace cutaway
