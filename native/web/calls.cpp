#include "calls.h"

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "../experts.h"

namespace cutaway {
namespace {

View view(Calls& r) {
  r.expect(2);
  const int buffer = r.integer();
  return {buffer, r.integer()};
}
Places places(Calls& r) {
  r.expect(2);
  const View floats = view(r);
  return {floats, r.integer()};
}
Rows rows(Calls& r) { return r.boolean() ? Rows::kLogits : Rows::kAll; }
const Packed& matrix(Calls& r) { return r.matrices.at((size_t)r.integer()); }

Norm norm(Calls& r) {
  r.expect(4);
  auto weight = r.floats(), bias = r.floats();
  const float eps = (float)r.number();
  return {std::move(weight), std::move(bias), eps, r.integer()};
}
Rotation rotation(Calls& r) {
  r.expect(6);
  auto frequencies = r.doubles();
  const bool half = r.boolean();
  const float factor = (float)r.number();
  const double growth = r.number();
  const int period = r.integer();
  return {std::move(frequencies), half, factor, growth, period, r.integer()};
}
AttendShape attend_shape(Calls& r) {
  r.expect(12);
  AttendShape s{};
  s.heads = r.integer(), s.kv_heads = r.integer(), s.head_dim = r.integer();
  s.scale = (float)r.number(), s.softcap = (float)r.number();
  s.window = r.integer(), s.reach = r.integer(), s.chunked = r.boolean();
  s.layer = r.integer(), s.reads = r.integer(), s.value_first = r.integer(), s.value_dim = r.integer();
  return s;
}

void embed(Plan& p, Calls& r) {
  const Packed& table = matrix(r);
  p.add(std::make_unique<Embed>(p, table, view(r), Embed::By::kToken));
}
void embed_positions(Plan& p, Calls& r) {
  const Packed& table = matrix(r);
  p.add(std::make_unique<Embed>(p, table, view(r), Embed::By::kPosition));
}
void gather(Plan& p, Calls& r) {
  const View in = view(r), out = view(r);
  p.add(std::make_unique<Gather>(in, out, r.integer()));
}
void reorder(Plan& p, Calls& r) {
  const Rows which = rows(r);
  const View in = view(r);
  auto order = r.integers();
  p.add(std::make_unique<Reorder>(which, in, std::move(order), view(r)));
}
void normalise(Plan& p, Calls& r) {
  const Rows which = rows(r);
  const View in = view(r);
  const int width = r.integer();
  Norm by{{}, {}, 0, 0};
  for (size_t given = r.count(); given; given--) by = norm(r);
  p.add(std::make_unique<Normalise>(which, in, width, std::move(by), places(r)));
}
void map(Plan& p, Calls& r) {
  const Rows which = rows(r);
  const Map kind = map_of(r.string());
  const View a = view(r), b = view(r);
  const float number = (float)r.number();
  const int width = r.integer();
  const View out = view(r);
  p.add(std::make_unique<Elementwise>(Elementwise::Args{which, kind, a, b, number, width, out, r.boolean()}));
}
void linear(Plan& p, Calls& r) {
  const Rows which = rows(r);
  const Places in = places(r);
  auto parts = r.list([&] {
    r.expect(4);
    const Packed& weight = matrix(r);
    const View out = view(r);
    auto bias = r.floats();
    return Linear::Part{weight, out, std::move(bias), r.integer()};
  });
  Linear::Finish finish{r.boolean()};
  if (const std::string gate = r.string(); !gate.empty()) finish.gate = map_of(gate);
  p.add(std::make_unique<Linear>(which, in, finish, std::move(parts)), true);
}
void attend(Plan& p, Calls& r) {
  const View q = view(r), k = view(r), v = view(r), out = view(r);
  const AttendShape shape = attend_shape(r);
  auto turn = rotation(r);
  auto sinks = r.floats();
  p.add(std::make_unique<Attend>(p, Attend::Views{q, k, v, out}, shape, std::move(turn), std::move(sinks), r.floats()));
}
void rotate(Plan& p, Calls& r) {
  const View in = view(r), out = view(r);
  const int heads = r.integer(), head_dim = r.integer();
  p.add(std::make_unique<Rotate>(p, in, out, heads, head_dim, rotation(r)));
}
void conv(Plan& p, Calls& r) {
  const View in = view(r), out = view(r);
  auto weight = r.floats(), bias = r.floats();
  const int width = r.integer();
  p.add(std::make_unique<Conv>(p, in, out, ConvWeights{std::move(weight), std::move(bias), width, r.integer()}));
}
void delta_net(Plan& p, Calls& r) {
  const View qkv = view(r), a = view(r), b = view(r), out = view(r);
  r.expect(5);
  DeltaShape shape{};
  shape.k_heads = r.integer(), shape.heads = r.integer(), shape.keys = r.integer(), shape.values = r.integer();
  shape.grouped = r.boolean();
  auto scale = r.floats();
  p.add(std::make_unique<DeltaNet>(p, DeltaNet::Views{qkv, a, b, out}, shape, std::move(scale), r.floats()));
}
void mamba2(Plan& p, Calls& r) {
  const View vkq = view(r), dt = view(r), out = view(r);
  r.expect(4);
  Mamba::Shape shape{};
  shape.groups = r.integer(), shape.heads = r.integer(), shape.keys = r.integer(), shape.values = r.integer();
  Mamba::Weights weights{};
  weights.a = r.floats(), weights.dt = r.floats(), weights.skip = r.floats();
  p.add(std::make_unique<Mamba>(p, Mamba::Views{vkq, dt, out}, shape, std::move(weights)));
}
void join(Plan& p, Calls& r) {
  const Rows which = rows(r);
  const auto part = [&] {
    r.expect(2);
    const View from = view(r);
    return Join::Part{from, r.integer()};
  };
  const Join::Part a = part(), b = part();
  const int groups = r.integer();
  p.add(std::make_unique<Join>(which, a, b, groups, view(r)));
}
Mixture mixture(Calls& r) {
  r.expect(12);
  Mixture m{};
  m.used = r.integer(), m.gating = gating_of(r.string()), m.normed = r.boolean(), m.scale = (float)r.number();
  m.groups = r.integer(), m.used_groups = r.integer(), m.best_of_group = r.integer();
  m.activation = map_of(r.string()), m.limit = (float)r.number();
  m.weighs_input = r.boolean(), m.tolerance = r.number(), m.bias = r.floats();
  return m;
}
// An expert's matrices in the order of Experts: its gate, if it has one, up, down; each with its bias, if any.
Expert expert(Calls& r) {
  r.expect(3);
  const auto biased = [&] {
    r.expect(2);
    const Packed& weight = matrix(r);
    return Biased{weight, r.floats()};
  };
  std::optional<Biased> gate;
  for (size_t given = r.count(); given; given--) gate = biased();
  Biased up = biased();
  return {std::move(gate), std::move(up), biased()};
}
void experts(Plan& p, Calls& r) {
  const Rows which = rows(r);
  const Places in = places(r);
  const View scores = view(r);
  Mixture by = mixture(r);
  auto all = r.list([&] { return expert(r); });
  const View out = view(r);
  p.add(std::make_unique<Experts>(Experts::Args{which, in, scores, std::move(by), out, view(r)}, std::move(all)), true);
}
void buffer(Plan& p, Calls& r) {
  const int width = r.integer();
  p.add_buffer(width, r.boolean());
}
void given(Plan& p, Calls& r) { p.set_input(view(r)); }
void output(Plan& p, Calls& r) { p.set_output(view(r)); }

// In the names and with the arguments of plan_module.cpp.
constexpr struct { const char* name; void (*add)(Plan&, Calls&); } kCalls[] = {
    {"buffer", buffer}, {"output", output}, {"embed", embed}, {"embed_positions", embed_positions}, {"gather", gather},
    {"reorder", reorder}, {"normalise", normalise}, {"map", map}, {"linear", linear}, {"attend", attend},
    {"rotate", rotate}, {"conv", conv}, {"delta_net", delta_net}, {"mamba2", mamba2}, {"join", join}, {"experts", experts},
    {"given", given},
};

}  // namespace

void Calls::call(Plan& plan) {
  count();  // the name and the arguments
  const std::string name = string();
  for (const auto& each : kCalls)
    if (name == each.name) return each.add(plan, *this);
  throw std::invalid_argument("the core has no op '" + name + "'");
}

}  // namespace cutaway
