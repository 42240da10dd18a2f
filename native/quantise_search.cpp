#include "quantise_search.h"

namespace cutaway {
namespace {

// NaN in the lanes whose sums are beyond a float, so that the group is refused; else x.
Floats unless_beyond(Floats sum, Floats x) { return pick(sum - sum == 0, x, all(__builtin_nanf(""))); }

}  // namespace

template <int n>
Affine affine(const Floats* x, const Floats* weights, int top, Tries tries, bool absolute) {
  Floats bottom = x[0], high = x[0], sum_w = weights[0], sum_x = weights[0] * x[0];
  for (int i = 1; i < n; i++) {
    bottom = pick(x[i] < bottom, x[i], bottom);
    high = pick(x[i] > high, x[i], high);
    sum_w += weights[i], sum_x += weights[i] * x[i];
  }
  bottom = pick(bottom > 0, Floats{}, bottom);
  const Ints flat = high <= bottom;
  const auto error_of = [&](const Affine& candidate) {
    Floats error{};
    for (int i = 0; i < n; i++) {
      const Floats off = candidate.scale * floats(candidate.code(x[i], top)) + candidate.low - x[i];
      error += weights[i] * (absolute ? magnitude(off) : off * off);
    }
    return error;
  };
  Affine best{{}, bottom, (float)top / (high - bottom), bottom};
  best.scale = 1.0f / best.factor;
  Floats least = error_of(best);
  const Floats first_error = least;
  for (int t = 0; t <= tries.last; t++) {
    // The minimum that is best so far is where codes begin.
    Affine candidate{{}, {}, (tries.first + tries.step * (float)t + (float)top) / (high - best.low), best.low};
    Floats sum_l{}, sum_l2{}, sum_xl{};
    for (int i = 0; i < n; i++) {
      const Floats l = floats(candidate.code(x[i], top)), wl = weights[i] * l;
      sum_l += wl, sum_l2 += wl * l, sum_xl += wl * x[i];
    }
    const Floats determinant = sum_w * sum_l2 - sum_l * sum_l;
    candidate.scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
    candidate.low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
    const Ints above = candidate.low > 0;
    candidate.low = pick(above, Floats{}, candidate.low);
    candidate.scale = pick(above, sum_xl / sum_l2, candidate.scale);
    const Floats error = error_of(candidate);
    const Ints better = (determinant > 0) & (error < least);
    least = pick(better, error, least);
    best.scale = pick(better, candidate.scale, best.scale);
    best.low = pick(better, candidate.low, best.low);
    best.factor = pick(better, candidate.factor, best.factor);
    best.bottom = pick(better, candidate.bottom, best.bottom);
  }
  best.scale = pick(flat, Floats{}, unless_beyond(first_error, best.scale));
  best.low = pick(flat, bottom, best.low);
  best.factor = pick(flat, Floats{}, best.factor);
  return best;
}
template Affine affine<16>(const Floats*, const Floats*, int, Tries, bool);
template Affine affine<32>(const Floats*, const Floats*, int, Tries, bool);

namespace {

// The first of the largest magnitude, with its sign; 0 where all are nothing.
template <int n>
Floats extreme(const Floats* x) {
  Floats top{}, extreme{};
  for (int i = 0; i < n; i++) {
    const Ints larger = magnitude(x[i]) > top;
    top = pick(larger, magnitude(x[i]), top), extreme = pick(larger, x[i], extreme);
  }
  return pick(top < kNothing, Floats{}, extreme);
}

}  // namespace

template <int n>
Symmetric symmetric(const Floats* x, const Floats* weights, int top) {
  const Floats outermost = extreme<n>(x);
  Symmetric best{{}, (float)-top / outermost};
  Floats best_fit{}, first{};  // how well the best fits; the first sum
  for (int step = -10; step <= 9; step++) {
    if (step == 0) continue;
    Floats factor = -((float)top + 0.1f * (float)step) / outermost, sum_lx{}, sum_l2{};
    if (step == -10) factor = best.factor;
    for (int i = 0; i < n; i++) {
      const Floats l = floats(clamp(nearest(factor * x[i]), -top, top - 1));
      sum_lx += weights[i] * x[i] * l, sum_l2 += weights[i] * l * l;
    }
    if (step == -10) first = sum_l2 + sum_lx;
    const Floats scale = sum_lx / sum_l2;
    const Ints better = (sum_l2 > 0) & (step == -10 ? Ints{} - 1 : sum_lx * sum_lx > best_fit * sum_l2);
    best_fit = pick(better, scale * sum_lx, best_fit);
    best.scale = pick(better, scale, best.scale);
    best.factor = pick(better, factor, best.factor);
  }
  const Ints nothing = outermost == 0;
  best.scale = pick(nothing, Floats{}, unless_beyond(first, best.scale));
  best.factor = pick(nothing, Floats{}, best.factor);
  return best;
}
template Symmetric symmetric<16>(const Floats*, const Floats*, int);
template Symmetric symmetric<32>(const Floats*, const Floats*, int);

Floats three_bits(const Floats (&x)[16], Ints (&codes)[16]) {
  const Floats outermost = extreme<16>(x), factor = -4.0f / outermost;
  Floats sum_lx{}, sum_l2{};
  for (int i = 0; i < 16; i++) {
    codes[i] = clamp(nearest(factor * x[i]), -4, 3);
    const Floats l = floats(codes[i]), w = x[i] * x[i];
    sum_lx += w * x[i] * l, sum_l2 += w * l * l;
  }
  const Floats first = sum_l2 + sum_lx;
  Ints changed = Ints{} - 1;
  for (int round = 0; round < 5 && (changed[0] | changed[1] | changed[2] | changed[3]); round++) {
    changed = Ints{};
    for (int i = 0; i < 16; i++) {
      const Floats l = floats(codes[i]), w = x[i] * x[i];
      Floats lx = sum_lx - w * x[i] * l, l2 = sum_l2 - w * l * l;
      const Ints code = clamp(nearest(x[i] * l2 / lx), -4, 3);
      Ints better = (lx > 0) & (code != codes[i]);
      lx += w * x[i] * floats(code), l2 += w * floats(code) * floats(code);
      better &= (l2 > 0) & (lx * lx * sum_l2 > sum_lx * sum_lx * l2);
      codes[i] = pick(better, code, codes[i]), changed |= better;
      sum_lx = pick(better, lx, sum_lx), sum_l2 = pick(better, l2, sum_l2);
    }
  }
  const Ints nothing = outermost == 0;
  for (Ints& code : codes) code = pick(nothing, Ints{}, code + 4);
  const Floats scale = pick(sum_l2 > 0, sum_lx / sum_l2, Floats{});
  return pick(nothing, Floats{}, unless_beyond(first, scale));
}

float positive(const float* x, const float* weights, int count, int top, uint8_t* codes) {
  float largest = 0.0f;
  for (int i = 0; i < count; i++) largest = largest > x[i] ? largest : x[i];
  std::fill_n(codes, count, uint8_t{0});
  if (largest < kNothing) return 0.0f;
  const auto code = [&](float factor, int i) { return std::min(top, nearest(factor * x[i])); };
  float best = (float)top / largest, least = 0.0f;
  for (int step = -5; step <= 4; step++) {
    if (step == 0) continue;
    const bool first = step == -5;  // which keeps codes as bytes, should one be negative
    const float factor = first ? best : (0.1f * (float)step + (float)top) / largest, scale = 1.0f / factor;
    float error = 0.0f;
    for (int i = 0; i < count; i++) {
      const int l = first ? (uint8_t)code(factor, i) : code(factor, i);
      const float off = x[i] - scale * (float)l;
      error += weights[i] * off * off;
    }
    if (first || error < least) least = error, best = factor;
  }
  float sum_lx = 0.0f, sum_l2 = 0.0f;
  for (int i = 0; i < count; i++) {
    const int l = code(best, i);
    codes[i] = (uint8_t)l;
    sum_lx += weights[i] * x[i] * (float)l, sum_l2 += weights[i] * (float)l * (float)l;
  }
  for (int round = 0; round < 5; round++)
    for (int i = 0; i < count; i++) {
      const float w = weights[i], l = codes[i];
      float lx = sum_lx - w * x[i] * l, l2 = sum_l2 - w * l * l;
      if (!(lx > 0 && l2 > 0)) continue;
      const int candidate = std::min(top, nearest(x[i] * l2 / lx));
      if (candidate == codes[i]) continue;
      lx += w * x[i] * (float)candidate, l2 += w * (float)candidate * (float)candidate;
      if (lx * lx * sum_l2 > sum_lx * sum_lx * l2) codes[i] = (uint8_t)candidate, sum_lx = lx, sum_l2 = l2;
    }
  return sum_l2 > 0.0f ? sum_lx / sum_l2 : 0.0f;
}

// Each boundary is half way between two values, and exact; what lies on it belongs to the upper.
Ints nearest_in_table(Floats x) {
  Ints index{};
  for (int i = 1; i < 16; i++) index -= ~(x < 0.5f * (float)(kIQ4[i - 1] + kIQ4[i]));
  return index;
}

Floats table_scale(const Floats (&x)[32], const Floats (&weights)[32]) {
  const Floats outermost = extreme<32>(x);
  Floats best{}, most{}, sum{};
  for (int t = -8; t <= 7; t++) {  // the first is what the others must be better than
    const Floats first = 1.0f / (outermost / 127.0f), factor = t == -8 ? first : (float)(t - 127) / outermost;
    Floats sum_qx{}, sum_q2{};
    for (int i = 0; i < 32; i++) {
      const Ints index = nearest_in_table(factor * x[i]);
      Floats q;
      for (int lane = 0; lane < kSide; lane++) q[lane] = kIQ4[index[lane]];
      sum_qx += weights[i] * q * x[i], sum_q2 += weights[i] * q * q;
    }
    if (t == -8) sum = sum_q2 + sum_qx;
    const Floats scale = sum_qx / sum_q2;
    const Ints better = (sum_q2 > 0) & (t == -8 ? Ints{} - 1 : sum_qx * sum_qx > most * sum_q2);
    most = pick(better, scale * sum_qx, most), best = pick(better, scale, best);
  }
  return pick(outermost == 0, Floats{}, unless_beyond(sum, best));
}

}  // namespace cutaway
