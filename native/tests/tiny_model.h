// Small random models, built from a fixed generator: the same numbers on every machine. One is a
// llama; the other has what others have: layer norms, learned positions, experts, ops of their own; in the rest
// layers have states: of a delta net and of Mamba 2, of Mamba 1, of RWKV-7.
#pragma once
#include <math.h>
#include <string.h>

#include <memory>
#include <vector>

#include "../experts.h"
#include "../ops.h"
#include "../recurrent.h"

namespace cutaway {

struct Random {  // SplitMix64
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  float uniform() { return (float)((int)(next() >> 44) - (1 << 19)) / (1 << 19); }  // -1 … 1, exact
};

// Where a block of a format keeps its halves, if it does, and the exponent of the first; -1: there is no second one.
struct Halves { int bytes, d, d_min, exponent; };
constexpr Halves kHalves[] = {{18, 0, -1, 6},  {20, 0, 2, 6},   {22, 0, -1, 6}, {24, 0, 2, 6},    {34, 0, -1, 1},
                              {84, 80, 82, 2}, {110, 108, -1, 2}, {144, 0, 2, 2}, {176, 0, 2, 2}, {210, 208, -1, 2},
                              {18, 0, -1, 2},  {136, 0, -1, 2}, {17, -1, -1, 0}, {36, -1, -1, 0},
                              {98, 0, -1, 4},  {110, 0, -1, 4}, {66, 0, -1, 3}, {74, 0, -1, 3}, {82, 0, -1, 3},
                              {50, 0, -1, 8},  {56, -1, -1, 8}, {54, 52, -1, 10}, {66, 64, -1, 10}, {18, 0, -1, 10},
                              {18, 0, -1, 10},
                              {21, -1, -1, 0}, {37, -1, -1, 0}, {69, -1, -1, 0},    // whose scales are floats
                              {37, -1, -1, 0}, {69, -1, -1, 0}, {133, -1, -1, 0},
                              {24, -1, -1, 0}, {40, -1, -1, 0}, {72, -1, -1, 0},
                              {40, -1, -1, 0}, {72, -1, -1, 0}, {136, -1, -1, 0}};
static_assert(sizeof kHalves / sizeof *kHalves == F16);

// A positive half: (1024 + fraction) · 2^(exponent - 25).
inline uint16_t half(int exponent, uint64_t random) {
  return (uint16_t)(exponent << 10 | (random & 1023));
}

// A matrix in the heap, so that a sanitizer sees a read beyond its last byte.
struct Matrix {
  std::vector<uint8_t> packed;
  Packed view;
};

// A positive float of about so many times 1/1024.
inline void put_float(Random& random, int times, uint8_t* p) {
  const float x = (1.5f + random.uniform()) * (float)times / 1024;
  memcpy(p, &x, 4);
}

inline void random_grouped_floats(Random& random, Format f, std::vector<uint8_t>& source) {
  const size_t bytes = 4 + kFloatGroups[f - FP8_G32] / (f == NF4 ? 2 : 1);
  for (uint8_t& byte : source) byte = f != NF4 && (byte & 127) == 127 ? 0 : byte;  // else NaN
  for (size_t i = 0; i < source.size(); i += bytes) put_float(random, f == NF4 ? 100 : 2, &source[i]);
}

inline void random_floats(Random& random, Format f, std::vector<uint8_t>& source) {
  if (is_grouped_float(f)) return random_grouped_floats(random, f, source);
  const int size = f == F32 ? 4 : 2;
  for (size_t i = 0; i < source.size(); i += size) {
    const float x = random.uniform() / 8;
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint16_t upper = f == BF16 ? (uint16_t)(bits >> 16)
                                     : (uint16_t)(half(8 + bits % 4, bits >> 8) | (bits >> 31) << 15);
    memcpy(source.data() + i, f == F32 ? (const void*)&bits : &upper, size);
  }
}

// Scales that leave weights of ordinary sizes in a block that is random otherwise.
inline void random_scales(Random& random, Format f, uint8_t* block) {
  const Halves h = kHalves[f];
  const uint16_t d = half(h.exponent, random.next());
  const uint16_t m = half(h.exponent + 2, random.next()) | (h.bytes > 34 ? 0 : 0x8000);
  if (h.d >= 0) memcpy(block + h.d, &d, 2);
  if (h.d_min >= 0) memcpy(block + h.d_min, &m, 2);
  if (kLayouts[f].scale == Scale::kGroup) {
    put_float(random, kLayouts[f].bits == 8 ? 1 : 12, block);
    block[4] = (uint8_t)(kLayouts[f].bits == 8 ? d % 64 - 32 : d % 17);
  }
  if (kLayouts[f].scale == Scale::kAffine) {  // codes of 4 bits are of both signs, those of 8 bits are not
    const float minimum = kLayouts[f].bits == 8 ? -0.17f : 0.004f;
    put_float(random, kLayouts[f].bits == 8 ? 1 : 12, block), memcpy(block + 4, &minimum, 4);
  }
  if (f == MXFP4) block[0] = 120 + d % 4;
  if (f == NVFP4)
    for (int i = 0; i < 4; i++) block[i] %= 32;
  if (f == IQ1_M)  // a quarter of the half in each
    for (int i = 0; i < 4; i++) block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | (d >> 4 * i & 15) << 4);
}

inline void random_matrix(Random& random, Pool& pool, Format f, int rows, int cols, Matrix& out) {
  std::vector<uint8_t> source(source_bytes(f, rows, cols));
  for (auto& byte : source) byte = (uint8_t)random.next();
  if (is_float(f)) random_floats(random, f, source);
  else for (size_t i = 0; i < source.size(); i += kHalves[f].bytes) random_scales(random, f, &source[i]);
  out.packed.assign(packed_bytes(f, rows, cols), 0);
  out.view = {f, rows, cols, panel_bytes(f, cols), out.packed.data(), nullptr};
  pack_rows(pool, out.view, {[&](size_t first, size_t, auto&) { return source.data() + first; }}, 0, rows, out.packed.data());
}

inline std::vector<double> frequencies(int head_dim) {
  std::vector<double> angles;
  for (int i = 0; i < head_dim; i += 2) angles.push_back(pow(10000.0, -(double)i / head_dim));
  return angles;
}

// hidden 256, 6 heads of 24 on 2 KV heads would leave a ragged width; 8 of 32 suit every format.
struct Shape {
  int vocab = 50, hidden = 256, heads = 8, kv_heads = 2, head_dim = 32, feed_forward = 256, layers = 2;
};

enum class Wiring { kLlama, kOther, kRecurrent, kMamba1, kRwkv };

// Owns what a plan refers to.
struct TinyModel {
  std::vector<std::unique_ptr<Matrix>> matrices;
  std::vector<float> unit_weights;
  std::unique_ptr<Plan> plan;
  Shape s;
  Format format;
  Random random;

  TinyModel(std::shared_ptr<Pool> pool, const Kernels* kernels, Format f, int context, int kv_blocks,
            Wiring wiring = Wiring::kLlama, KvFormats kv = {KvFormat::f16, KvFormat::f16})
      : unit_weights(1024, 1.0f), plan(std::make_unique<Plan>(pool, kernels, Plan::Options{.kv_blocks = kv_blocks, .context = context, .kv = kv})),
        format(f), random{(uint64_t)f + 1} {
    if (wiring == Wiring::kOther) build_other();
    else build(wiring);
  }

  Packed matrix(int rows, int cols) {
    matrices.push_back(std::make_unique<Matrix>());
    random_matrix(random, *plan->pool, format, rows, cols, *matrices.back());
    return matrices.back()->view;
  }

  void norm(Rows rows, View in, View floats, int act) {
    std::vector<float> weight(unit_weights.begin(), unit_weights.begin() + s.hidden);
    const Places out = is_float(format) ? Places{floats} : Places{.act = act};
    plan->add(std::make_unique<Normalise>(rows, in, s.hidden, Norm{weight, {}, 1e-5f, s.hidden}, out));
  }

  void linear(Rows rows, View in, int act, Linear::Finish finish, std::vector<Linear::Part> parts) {
    plan->add(std::make_unique<Linear>(rows, Places{in, act}, finish, std::move(parts)));
  }

  void quantise(View in, int width, int act) {
    if (!is_float(format))
      plan->add(std::make_unique<Normalise>(Rows::kAll, in, width, Norm{{}, {}, 0, width}, Places{.act = act}));
  }

  // An op with a state instead of attention: a convolution, then a delta net or Mamba 2 of 8 heads of 32 values.
  void add_states(View normed, View x, int act, bool is_delta) {
    const int n = s.hidden, k_heads = 2, keys = 24, heads = 8, mixed = n + 2 * k_heads * keys;
    const View in{plan->add_buffer(mixed + 2 * heads, false), 0}, out{plan->add_buffer(mixed, false), 0};
    const View y{plan->add_buffer(n, false), 0}, gates{in.buffer, mixed};
    linear(Rows::kAll, normed, act, {}, {{matrix(mixed, n), in, {}}, {matrix(2 * heads, n), gates, {}}});
    std::vector<float> taps(mixed * 4), of_heads(heads);
    for (float& weight : taps) weight = random.uniform();
    for (float& weight : of_heads) weight = random.uniform() - 1;
    plan->add(std::make_unique<Conv>(*plan, in, out, ConvWeights{taps, std::vector<float>(mixed, 0.1f), mixed, 4}));
    plan->add(std::make_unique<Elementwise>(Elementwise::Args{Rows::kAll, Map::silu, out, {-1, 0}, 0, mixed, out}));
    if (is_delta)
      plan->add(std::make_unique<DeltaNet>(*plan, DeltaNet::Views{out, gates, {gates.buffer, gates.column + heads}, y},
                                           DeltaShape{k_heads, heads, keys, n / heads, true, 1}, of_heads, of_heads));
    else
      plan->add(std::make_unique<Mamba>(*plan, Mamba::Views{out, gates, y}, Mamba::Shape{k_heads, heads, keys, n / heads},
                                        Mamba::Weights{of_heads, of_heads, of_heads}));
    add_output(y, x, act);
  }

  // What an op with a state computes, normed in two groups, through a matrix.
  void add_output(View y, View x, int act) {
    const int n = s.hidden;
    const Norm norm{std::vector<float>(unit_weights.begin(), unit_weights.begin() + n), {}, 1e-5f, n / 2};
    plan->add(std::make_unique<Normalise>(Rows::kAll, y, n, norm, is_float(format) ? Places{y} : Places{.act = act}));
    linear(Rows::kAll, y, act, {.adds = true}, {{matrix(n, n), x, {}}});
  }

  // Mamba 1, in which each of the numbers has a state of 24.
  void add_mamba1(View normed, View x, int act) {
    const int n = s.hidden, keys = 24;
    const View in{plan->add_buffer(2 * n + 2 * keys, false), 0}, y{plan->add_buffer(n, false), 0};
    const View dt{in.buffer, n}, k{in.buffer, 2 * n}, q{in.buffer, 2 * n + keys};
    linear(Rows::kAll, normed, act, {}, {{matrix(2 * n + 2 * keys, n), in, {}}});
    std::vector<float> a(keys * n), skip(n);
    for (float& number : a) number = random.uniform() - 1;
    for (float& number : skip) number = random.uniform();
    plan->add(std::make_unique<Mamba1>(*plan, Mamba1::Views{in, dt, k, q, y}, keys, n, Mamba1::Weights{a, skip}));
    add_output(y, x, act);
  }

  // The heads of RWKV-7, with what a token gives itself.
  void add_rwkv(View normed, View x, int act) {
    const int n = s.hidden;
    const View r{plan->add_buffer(6 * n, false), 0}, y{plan->add_buffer(n, false), 0};
    const auto at = [&](int i) { return View{r.buffer, i * n}; };
    const auto map = [&](Map kind, View in, float number) {
      plan->add(std::make_unique<Elementwise>(Elementwise::Args{Rows::kAll, kind, in, {-1, 0}, number, n, in}));
    };
    linear(Rows::kAll, normed, act, {}, {{matrix(6 * n, n), r, {}}});
    map(Map::decay, at(3), 0.6f);
    for (const int small : {4, 5}) map(Map::scale, at(small), 0.05f);
    plan->add(std::make_unique<Wkv>(*plan, Wkv::Views{at(2), r, at(3), at(1), at(4), at(5), y}, s.heads, s.head_dim));
    plan->add(std::make_unique<OwnValue>(OwnValue::Args{Rows::kAll, r, at(1), at(2), y, n, s.head_dim, y}));
    add_output(y, x, act);
  }

  void add_states(Wiring wiring, int layer, View normed, View x, int act) {
    if (wiring == Wiring::kMamba1) add_mamba1(normed, x, act);
    else if (wiring == Wiring::kRwkv) add_rwkv(normed, x, act);
    else add_states(normed, x, act, layer == 0);
  }

  void build(Wiring wiring) {
    const int q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
    const View x{plan->add_buffer(s.hidden, false), 0}, normed{plan->add_buffer(s.hidden, false), 0};
    const View heads{plan->add_buffer(q + 2 * kv, false), 0}, mixed{plan->add_buffer(q, false), 0};
    const View up{plan->add_buffer(s.feed_forward, false), 0}, out{plan->add_buffer(s.vocab, false), 0};
    const int act = plan->add_buffer(256, true);
    plan->add(std::make_unique<Embed>(*plan, matrix(s.vocab, s.hidden), x, Embed::By::kToken));
    for (int layer = 0; layer < s.layers; layer++) {
      const View k{heads.buffer, q}, v{heads.buffer, q + kv};
      norm(Rows::kAll, x, normed, act);
      if (wiring != Wiring::kLlama) {
        add_states(wiring, layer, normed, x, act);
        norm(Rows::kAll, x, normed, act);
      }
      linear(Rows::kAll, normed, act, {},
             {{matrix(q, s.hidden), heads, {}}, {matrix(kv, s.hidden), k, {}}, {matrix(kv, s.hidden), v, {}}});
      plan->add(std::make_unique<Attend>(*plan, Attend::Views{heads, k, v, mixed},
                                         AttendShape{s.heads, s.kv_heads, s.head_dim, 0.1767767f,
                                                     layer ? 5.0f : 0.0f, layer ? 40 : 0},
                                         Rotation{frequencies(s.head_dim), layer > 0, 1.0f}));
      quantise(mixed, q, act);
      linear(Rows::kAll, mixed, act, {.adds = true}, {{matrix(s.hidden, q), x, {}}});
      norm(Rows::kAll, x, normed, act);
      linear(Rows::kAll, normed, act, {.gate = Map::silu_mul},
             {{matrix(s.feed_forward, s.hidden), up, {}}, {matrix(s.feed_forward, s.hidden), up, {}}});
      quantise(up, s.feed_forward, act);
      linear(Rows::kAll, up, act, {.adds = true}, {{matrix(s.hidden, s.feed_forward), x, {}}});
    }
    plan->add(std::make_unique<Gather>(x, mixed, s.hidden));
    norm(Rows::kLogits, mixed, normed, act);
    linear(Rows::kLogits, normed, act, {},
           {{matrix(s.vocab, s.hidden), out, std::vector<float>(s.vocab, 0.25f)}});
    plan->set_output(out);
  }

  // Each op that the llama lacks, in an order that keeps the numbers small.
  void build_other() {
    const int n = s.hidden, kv = s.kv_heads * s.head_dim, experts = 5;
    const auto floats = [&] { return View{plan->add_buffer(n, false), 0}; };
    const View x = floats(), normed = floats(), q = floats(), mixed = floats(), up = floats();
    const View k{plan->add_buffer(2 * kv, false), 0}, v{k.buffer, kv};
    const View scores{plan->add_buffer(experts, false), 0}, out{plan->add_buffer(s.vocab, false), 0};
    const int act = plan->add_buffer(n, true);
    const auto map = [&](Rows rows, Map kind, View a, View b, float number, int width) {
      plan->add(std::make_unique<Elementwise>(Elementwise::Args{rows, kind, a, b, number, width, a}));
    };
    const auto layer_norm = [&](Rows rows, View in, int group) {
      const Norm norm{std::vector<float>(group, 1.0f), std::vector<float>(group, 0.1f), 1e-5f, group};
      plan->add(std::make_unique<Normalise>(rows, in, n, norm, Places{normed, is_float(format) ? -1 : act}));
    };
    plan->add(std::make_unique<Embed>(*plan, matrix(s.vocab, n), x, Embed::By::kToken));
    plan->add(std::make_unique<Embed>(*plan, matrix(plan->context(), n), mixed, Embed::By::kPosition));
    map(Rows::kAll, Map::add, x, mixed, 0, n);
    layer_norm(Rows::kAll, x, n);
    linear(Rows::kAll, normed, act, {},
           {{matrix(n, n), q, {}}, {matrix(kv, n), k, {}}, {matrix(kv, n), v, {}}});
    const Norm of_head{std::vector<float>(s.head_dim, 0.5f), {}, 1e-5f, s.head_dim};
    plan->add(std::make_unique<Normalise>(Rows::kAll, q, n, of_head, Places{q}));
    std::vector<double> half = frequencies(s.head_dim);
    half.resize(half.size() / 2);  // half of each head is rotated
    const AttendShape shape{s.heads, s.kv_heads, s.head_dim, 0.2f, 0, 7};
    plan->add(std::make_unique<Attend>(*plan, Attend::Views{q, k, v, mixed}, shape, Rotation{half, true, 1.2f},
                                       std::vector<float>(s.heads, 0.5f)));
    quantise(mixed, n, act);
    linear(Rows::kAll, mixed, act, {.adds = true}, {{matrix(n, n), x, {}}});
    layer_norm(Rows::kAll, x, n / 4);
    linear(Rows::kAll, normed, act, {},
           {{matrix(experts, n), scores, {}}, {matrix(n, n), up, {}}});
    std::vector<Expert> all;
    for (int i = 0; i < experts; i++)
      all.push_back({Biased{matrix(n, n)}, {matrix(n, n), std::vector<float>(n, 0.1f)}, {matrix(n, n)}});
    const Mixture mixture{2, Gating::sigmoid, true, 1.5f, 1, 1, 2, Map::clamped_swiglu, 7, false, 0,
                          std::vector<float>(experts, 0.2f)};
    plan->add(std::make_unique<Experts>(Experts::Args{Rows::kAll, {normed, act}, scores, mixture, mixed}, all));
    map(Rows::kAll, Map::gelu, up, {-1, 0}, 0, n);
    map(Rows::kAll, Map::gelu_mul, mixed, up, 0, n);
    map(Rows::kAll, Map::gelu_exact_mul, mixed, up, 0, n);
    map(Rows::kAll, Map::scale, mixed, {-1, 0}, 0.5f, n);
    map(Rows::kAll, Map::add, x, mixed, 0, n);
    map(Rows::kAll, Map::gelu_exact, x, {-1, 0}, 0, n);
    plan->add(std::make_unique<Gather>(x, mixed, n));
    layer_norm(Rows::kLogits, mixed, n);
    linear(Rows::kLogits, normed, act, {}, {{matrix(s.vocab, n), out, {}}});
    map(Rows::kLogits, Map::softcap, out, {-1, 0}, 30, s.vocab);
    plan->set_output(out);
  }
};

}  // namespace cutaway
