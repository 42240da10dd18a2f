// Matrix units: tiles of bytes, and the one operation on them, sums += activations · codes in whole numbers.
//
// Eight tiles: 0-3 sums (16 rows of 16 int32), 4 and 5 activations (16 rows of k int8), 6 and 7 codes (k / 4 rows of 16
// lanes of 4 k). With CUTAWAY_TILES_PLAIN the operations are plain C++, so that any machine runs the same path; else
// Intel's AMX. Those are asm, not the compilers' intrinsics: GCC 12's tile_loadd names no memory and its tile_loadconfig
// names 8 bytes of 64, so that the stores before them may be dropped.
#pragma once
#include <stdint.h>
#include <string.h>

namespace cutaway::CUTAWAY_TIER {

constexpr int kTileHeight = 16;  // rows of activations

#if defined(CUTAWAY_TILES_PLAIN)

// The tiles hold noise until something is loaded: no program may rely on what was there.
template <int k> class Tiles {
  uint8_t bytes_[8][16][64];
  static constexpr int rows(int i) { return i < 6 ? kTileHeight : k / 4; }
  static constexpr int width(int i) { return i == 4 || i == 5 ? k : 64; }

 public:
  Tiles() { memset(bytes_, 0xA5, sizeof bytes_); }
  template <int i> INLINED void load(const void* p, int stride) {
    memset(bytes_[i], 0, sizeof bytes_[i]);
    for (int r = 0; r < rows(i); r++) memcpy(bytes_[i][r], (const uint8_t*)p + (long)r * stride, width(i));
  }
  template <int i> INLINED void store(void* p) const {
    for (int r = 0; r < rows(i); r++) memcpy((uint8_t*)p + 64 * r, bytes_[i][r], 64);
  }
  template <int sums, int x, int w> INLINED void dot() {
    for (int m = 0; m < kTileHeight; m++)
      for (int n = 0; n < 16; n++) {
        int32_t sum;
        memcpy(&sum, bytes_[sums][m] + 4 * n, 4);
        for (int j = 0; j < k; j++) sum += (int8_t)bytes_[x][m][j] * (int8_t)bytes_[w][j / 4][4 * n + j % 4];
        memcpy(bytes_[sums][m] + 4 * n, &sum, 4);
      }
  }
};

// Codes as the signed bytes that they stand for.
template <int offset> INLINE W less(W w) {
  uint8_t bytes[64];
  memcpy(bytes, &w, 64);
  for (uint8_t& byte : bytes) byte = (uint8_t)(byte - offset);
  memcpy(&w, bytes, 64);
  return w;
}

INLINE F fma_at(F a, const float* b, F c) { return fma(a, set1(*b), c); }

#else

template <int k> class Tiles {
  struct alignas(64) Shape {
    uint8_t palette = 1, start = 0, unused[14] = {};
    uint16_t width[16] = {};
    uint8_t rows[16] = {};
  };

 public:
  // Shapes for this thread, until the end of the scope: a thread that keeps tiles is slower to switch.
  Tiles() {
    Shape s;
    for (int i = 0; i < 8; i++) s.rows[i] = i < 6 ? kTileHeight : k / 4, s.width[i] = i == 4 || i == 5 ? k : 64;
    asm volatile("ldtilecfg %0" : : "m"(s));
  }
  ~Tiles() { asm volatile("tilerelease"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
  template <int i> INLINED void load(const void* p, int stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"((long)stride), "i"(i) : "memory");
  }
  template <int i> INLINED void store(void* p) const {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(64L), "i"(i) : "memory");
  }
  template <int sums, int x, int w> INLINED void dot() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(x), "i"(w));
  }
};

template <int offset> INLINE W less(W w) { return _mm512_sub_epi8(w, _mm512_set1_epi8((char)offset)); }

// fma with a factor in memory. GCC would load it apart, which takes a turn of the unit that multiplies.
INLINE F fma_at(F a, const float* b, F c) {
  asm("vfmadd231ps %1%{1to16%}, %2, %0" : "+v"(c) : "m"(*b), "v"(a));
  return c;
}

#endif

}  // namespace cutaway::CUTAWAY_TIER
