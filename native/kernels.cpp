// Every kernel, once. This file is compiled once per instruction-set tier, in a namespace of its own;
// it includes nothing that could leak code of one tier into another (no STL, no static objects).
#include "kernels.h"
#include "simd/simd.h"

namespace cutaway::CUTAWAY_TIER {
namespace {
#include "linear.inc"
#include "grouped_float.inc"
#include "elementwise.inc"
#include "delta.inc"
#include "mamba.inc"
#include "rwkv.inc"
#include "attention.inc"
#include "sample_kernels.inc"
#include "sample_luck.inc"
#include "sample_observe.inc"

template <Format f, int tile = 0> constexpr void fill(Kernels& k) {
  constexpr Format g = kernel_of(f);
  if constexpr (tile < kTiles) {
    if constexpr (is_grouped_float(f)) k.tile[f][tile] = grouped_float_tile<f, kTileRows[tile]>;
    else if constexpr (is_float(f)) k.tile[f][tile] = float_tile<f, kTileRows[tile]>;
    else k.tile[f][tile] = quant_tile<g, kTileRows[tile]>;
    fill<f, tile + 1>(k);
  } else {
    if constexpr (!is_float(f) && is_unpacked(kLayouts[g])) k.tiles[f] = quant_tiles<g>;
    if constexpr (is_float(f) && !is_grouped_float(f) && kVectors >= 32) k.floats[f] = float_panels<f>;
    if constexpr (f + 1 < kFormats) fill<(Format)(f + 1)>(k);
  }
}

constexpr Kernels make() {
  Kernels k{};
  k.name = CUTAWAY_TIER_NAME, k.tiles_from = kUnpacksAll ? 16 : 32;
  fill<(Format)0>(k);
  k.quantise = quantise, k.rms_norm = rms_norm, k.layer_norm = layer_norm;
  k.clip_norm = clip_norm, k.softmax = softmax;
  k.root_mean_square = root_mean_square, k.map = map, k.conv = conv;
  k.unit = unit, k.keep = keep, k.learn = learn, k.delta = delta;
  k.keep_and_step = keep_and_step, k.mamba = mamba, k.mamba1 = mamba1, k.own_value = own_value, k.wkv = wkv;
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
