// The tiers with matrix units: another tier's table, in which many rows go by tiles (kernels_tiles.cpp).
//
// `amx` is used where a self-test has the bits of `generic`. `amx-plain` is the same path in plain C++, so that every
// machine tests it.
#include <string.h>

#include <vector>

#include "kernels.h"
#include "platform.h"

namespace cutaway {

void add_tiles_amx(Kernels&);
void add_tiles_amx_plain(Kernels&);

namespace {

uint32_t random(uint32_t& state) { return (state = state * 1664525u + 1013904223u) >> 8; }

// A row of halves around 1.
void fill_halves(uint8_t* p, uint32_t& state) {
  for (int i = 0; i < kLanes; i++) {
    const uint16_t half = (uint16_t)(0x3800 | (random(state) & 0x7ff));
    memcpy(p + 2 * i, &half, 2);
  }
}

std::vector<uint8_t> random_panel(Format f, int blocks) {
  const Layout l = kLayouts[f];
  uint32_t state = (uint32_t)f;
  std::vector<uint8_t> panel(panel_bytes(f, blocks * kQuant));
  for (uint8_t& byte : panel) byte = (uint8_t)random(state);
  uint8_t* p = panel.data();
  for (int b = 0; b < blocks; b++, p += block_bytes(l)) {
    if (has_header(l) && b % l.blocks == 0) {
      for (int at = 0; at < header_bytes(l); at += 2 * kLanes) fill_halves(p + at, state);
      p += header_bytes(l);
    }
    uint8_t* scales = p + code_bytes(l);
    for (int at = 0; l.scale == Scale::kHalf && at < scale_bytes(l); at += 2 * kLanes) fill_halves(scales + at, state);
    for (int at = 0; l.scale == Scale::kE8M0 && at < scale_bytes(l); at++) scales[at] = (uint8_t)(124 + scales[at] % 8);
    for (int at = 0; l.scale == Scale::kE4M3 && at < scale_bytes(l); at++) scales[at] &= 0x7F;
  }
  return panel;
}

// Whether a tile of 16 rows has the bits of the generic tier.
bool agrees(const Kernels& k, Format f) {
  constexpr int blocks = kSuper, rows = kTileRows[0];
  uint32_t state = 1;
  const std::vector<uint8_t> panel = random_panel(f, blocks);
  std::vector<float> x(rows * blocks * kQuant);
  for (float& number : x) number = (float)((int)(random(state) % 2001) - 1000) / 1000;
  std::vector<ActBlock> acts(rows * blocks);
  for (int r = 0; r < rows; r++)
    kernels_generic()->quantise(x.data() + r * blocks * kQuant, blocks * kQuant, act_row(acts.data(), blocks, r, rows));
  alignas(64) float actual[rows * kLanes], expected[rows * kLanes];
  k.tiles[f](panel.data(), blocks, {acts.data(), 0, 1}, Ahead::kNone, actual);
  kernels_generic()->tile[f][0](panel.data(), blocks, acts.data(), 0, Ahead::kNone, expected);
  return !memcmp(actual, expected, sizeof actual);
}

Kernels with_tiles(Kernels k, void (*add)(Kernels&)) {
  add(k);
  return k;
}

#if defined(__x86_64__)

struct Amx {
  const Kernels table = with_tiles(*kernels_avx512(), add_tiles_amx);
  const char* refusal = "";
  Amx() {
    if (!platform::allow_tiles())
      refusal = "the system does not let this process use the matrix units (amx)";
    else if (!agrees(table, Q8_0) || !agrees(table, Q4_K) || !agrees(table, Q6_K))  // whole blocks, minima, halves
      refusal = "the matrix units (amx) do not compute what the generic tier does";
  }
};

// Asked once, when the tiers are first looked at.
const Amx& amx() {
  static const Amx units;
  return units;
}

bool was_asked = false;

#endif

}  // namespace

#if defined(__x86_64__)
const Kernels* kernels_amx() {
  was_asked = true;
  return *amx().refusal ? nullptr : &amx().table;
}
const char* amx_refusal() { return was_asked ? amx().refusal : ""; }
#else
const Kernels* kernels_amx() { return nullptr; }
const char* amx_refusal() { return ""; }
#endif

const Kernels* kernels_amx_plain() {
  static const Kernels table = with_tiles(*kernels_generic(), add_tiles_amx_plain);
  return &table;
}

}  // namespace cutaway
