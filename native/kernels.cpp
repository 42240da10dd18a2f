// Every kernel, once. This file is compiled once per instruction-set tier, in a namespace of its own;
// it includes nothing that could leak code of one tier into another (no STL, no static objects).
#include "kernels.h"
#include "simd/simd.h"

namespace cutaway::CUTAWAY_TIER {
namespace {
#include "linear.inc"
#include "elementwise.inc"
#include "attention.inc"
#include "sample_kernels.inc"
#include "sample_luck.inc"
#include "sample_observe.inc"

template <Format f, int tile = 0> constexpr void fill(Kernels& k) {
  if constexpr (tile < kTiles) {
    if constexpr (is_float(f)) k.tile[f][tile] = float_tile<f, kTileRows[tile]>;
    else k.tile[f][tile] = quant_tile<f, kTileRows[tile]>;
    fill<f, tile + 1>(k);
  } else if constexpr (!is_float(f)) {
    if constexpr (is_unpacked(kLayouts[f])) k.tiles[f] = quant_tiles<f>;
  }
}

constexpr Kernels make() {
  Kernels k{};
  k.name = CUTAWAY_TIER_NAME, k.tiles_from = 32;
  fill<Q4_0>(k), fill<Q4_1>(k), fill<Q5_0>(k), fill<Q5_1>(k), fill<Q8_0>(k);
  fill<Q2_K>(k), fill<Q3_K>(k), fill<Q4_K>(k), fill<Q5_K>(k), fill<Q6_K>(k);
  fill<F16>(k), fill<BF16>(k), fill<F32>(k);
  k.quantise = quantise, k.rms_norm = rms_norm, k.layer_norm = layer_norm, k.map = map;
  k.to_half = to_half, k.to_codes = to_codes;
  k.attend_rows = kAttendRows, k.attend = attend, k.merge = merge, k.divide = divide;
  k.row_stats = row_stats, k.max_of = max_of, k.group_max = group_max, k.collect = collect;
  k.exp_sum = exp_sum, k.exp_sum_near = exp_sum_near, k.exp_each = exp_each, k.ordered_sum = ordered_sum;
  k.luck_all = luck_all, k.luck_some = luck_some, k.bounds = bounds;
  k.exp_sum_deep = exp_sum_deep, k.rank_of = rank_of, k.logit_histogram = logit_histogram;
  return k;
}

constexpr Kernels table = make();
}  // namespace
}  // namespace cutaway::CUTAWAY_TIER

namespace cutaway {
const Kernels* CUTAWAY_TIER_FUNCTION() { return &CUTAWAY_TIER::table; }
}  // namespace cutaway
