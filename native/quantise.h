// Numbers into a file's quant blocks: the very bits that ggml's reference quantisers give.
//
// A quant block depends on its own numbers alone, in arithmetic that is written down, so that the
// bytes are the same whatever the threads and the instruction set. Sources: `quantize_row_*_ref` and
// `make_qx_quants` in `ggml-quants.c` of ggml, without an importance matrix.
#pragma once
#include "formats.h"
#include "pool.h"

namespace cutaway {

// Whether quantise can write this format: Q4_0, Q4_1, Q8_0, Q6_K, F16, BF16 and F32.
bool can_quantise_to(Format to);

// `count` numbers stored as F16, BF16 or F32, whole quant blocks of `to`, into `out`. Returns -1, or the
// first number of the first quant block that holds one that is not finite or that `to` cannot hold; what
// `out` holds there means nothing.
int64_t quantise(Pool& pool, Format from, const uint8_t* source, int64_t count, Format to, uint8_t* out);

}  // namespace cutaway
