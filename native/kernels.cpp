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

template <Format f> constexpr void fill(Kernels& k) {
  if constexpr (is_float(f)) {
    k.tile[f][0] = float_tile<f, 8>, k.tile[f][1] = float_tile<f, 4>;
    k.tile[f][2] = float_tile<f, 2>, k.tile[f][3] = float_tile<f, 1>;
  } else {
    if constexpr (is_unpacked(kLayouts[f])) k.tiles[f] = quant_tiles<f>;
    k.tile[f][0] = quant_tile<f, 8>, k.tile[f][1] = quant_tile<f, 4>;
    k.tile[f][2] = quant_tile<f, 2>, k.tile[f][3] = quant_tile<f, 1>;
  }
}

constexpr Kernels make() {
  Kernels k{};
  k.name = CUTAWAY_TIER_NAME;
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
