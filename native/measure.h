// The limits of the machine with a pool's threads: bytes read, and int8 products, per second.
//
// Each call is one run of some milliseconds; the caller repeats it and takes the best.
#pragma once
#include <string>

#include "kernels.h"
#include "pack.h"
#include "pool.h"

namespace cutaway {

// Memory in large pages that a pool's threads read from one end to the other.
class ReadProbe {
 public:
  ReadProbe(Pool& pool, size_t bytes);
  // Bytes a second; each thread reads its share in this many streams at once.
  double run(Pool& pool, int streams) const;

 private:
  Memory memory_;
};

// Operations a second (a multiplication and an addition are two) of the best tile of `kernels` on one
// panel that stays in the cache.
double tile_rate(Pool& pool, const Kernels& kernels, const Packed& weight);

// The same of the tier's bare dot-product instructions in registers; 0 where it is not known.
double instruction_rate(Pool& pool, const std::string& tier);

}  // namespace cutaway
