// What matrix units do, compiled once for each tier that has them; all else is another tier's (matrix_units.cpp).
#include "kernels.h"
#include "simd/simd.h"
#include "simd/tile.h"

namespace cutaway::CUTAWAY_TIER {
namespace {
#include "linear.inc"
#include "linear_tiles.inc"

template <int f = 0> void fill(Kernels& k) {
  if constexpr (f < kFormats) {
    if constexpr (!is_float((Format)f)) k.tiles[f] = matrix_tiles<kernel_of((Format)f)>;
    fill<f + 1>(k);
  }
}
}  // namespace
}  // namespace cutaway::CUTAWAY_TIER

namespace cutaway {
void CUTAWAY_TIER_FUNCTION(Kernels& k) {
  k.name = CUTAWAY_TIER_NAME;
  CUTAWAY_TIER::fill(k);
}
}  // namespace cutaway
