// The functions of an instruction-set tier, in a table that is chosen once.
#pragma once
#include "kv_format.h"

namespace cutaway {

// How many rows of activations a tile may sweep at once; a tile function per entry. Rows are cut into
// tiles from the first on: as many of 16 as there are, then 8, 4, 2 and 1.
constexpr int kTileRows[] = {16, 8, 4, 2, 1};
constexpr int kTiles = 5;

inline int tile_of(int rows_left) {
  int tile = 0;
  while (kTileRows[tile] > rows_left) tile++;
  return tile;
}

// Where a row's quant blocks lie. Those of a tile's rows are side by side, block by block, so that a
// kernel reads all of them at constant distances from one pointer.
struct ActRow {
  ActBlock* first;
  int apart;  // from one to the next
};

// The quant blocks of row `row` of `count`; those of a tile's first row are where the tile begins.
inline ActRow act_row(ActBlock* rows, int blocks, int row, int count) {
  int first = row / kTileRows[0] * kTileRows[0], size = kTileRows[tile_of(count - first)];
  while (first + size <= row) first += size, size = kTileRows[tile_of(count - first)];
  return {rows + (size_t)first * blocks + (row - first), size};
}

// So many tiles of 16 rows, `apart` quant blocks from one to the next.
struct ActTiles {
  const ActBlock* first;
  size_t apart;
  int count;
};

// What a tile prefetches of the panels while it reads them: nothing; 4 kB ahead; or 8 kB ahead, into the second
// cache.
enum class Ahead { kNone, kNear, kFar };

constexpr int kMostAttendRows = 8;  // Kernels::attend_rows of any tier

// Query rows of one KV head over one chunk of its history.
struct AttendChunk {
  const float* q;           // (head_dim, rows): the same number of all query rows side by side
  const int32_t *position, *from, *limit;  // of each query row; it sees from … limit
  int rows;                 // 1 … Kernels::attend_rows
  int head_dim, head_stride;  // V rows are head_stride numbers apart, a multiple of 16
  int start, first, end;    // the chunk's first token; the tokens to look at are [first, end), from a block's first on
  int last;                 // the last token that will be looked at, in this chunk or a later one
  const int32_t* blocks;    // the sequence's block table
  KvFormat key_format, value_format;
  const uint8_t *keys, *values;  // of block 0, this layer and this head; no values: numbers of the keys
  int value_first, value_dim;    // which, both multiples of 16; of separate values, how many numbers each has
  size_t block_step;             // bytes from one KV block to the next
  float scale, softcap;     // softcap 0: none
  float *peak, *total, *out;  // (rows), (rows), (rows, head_stride)
  const float* hidden_from = nullptr;  // as in Batch, of this sequence
  const float* const* bias = nullptr;  // of each query row, by token: what is added to its scores; null: nothing
};

// One token of one head of a gated delta net.
struct DeltaToken {
  const float *q, *k;  // (keys)
  const float* keep;   // what the state is multiplied by: key i's row by keep[i * keep_step]
  float learn;         // what the change is multiplied by
  int keys, keep_step;
  size_t stride;       // floats from one key's values in the state to the next's
};

// One token of one head of Mamba 2.
struct MambaToken {
  const float *q, *k;      // (keys)
  float keep, step, skip;  // what the state is multiplied by, what the value is, and what is added of it to the output
  int keys, stride;
};

// One token of Mamba 1. Pointers are to all columns, of which the state has some.
struct Mamba1Token {
  const float *x, *dt;        // (columns)
  const float *q, *k;         // (keys)
  const float *a, *skip;      // (keys, columns), (columns)
  int keys, columns, stride;  // stride: floats from one key's columns in the state to the next's
};

// One token of one head of RWKV-7: the state's row i is multiplied by keep[i], gets k[i] · the value, and loses loss[i] · what the
// state had at the key `removed`.
struct WkvToken {
  const float *r, *keep, *k, *removed, *loss;  // (keys)
  int keys, stride;
};

// The ops that work number by number.
enum class Map {
#define OP(kind, form, expression) kind,
#include "elementwise.def"
};
enum class Form { unary, binary, gate };
constexpr struct { const char* name; Form form; const char* expression; } kMaps[] = {
#define OP(kind, form, expression) {#kind, Form::form, #expression},
#include "elementwise.def"
};

constexpr int kHistogram = 32;  // bins of a row's logits, one nat each

struct RowStats {
  uint64_t hash;       // sampling/observe.py
  uint32_t magnitude;  // bits of the largest |x|: 0x7F800000 or more where x is not finite
  float max;
};

// No more than kFloatPanels panels of floats, `apart` bytes from one to the next, and as many times out[rows][16].
constexpr int kFloatPanels = 3, kFloatRows = 8;
struct FloatPanels { const uint8_t* first; size_t apart; int count; float* out; size_t out_apart; };

// What a convolution multiplies some numbers by: taps[t * stride + i] + more[t]; it begins from bias[i]. Null: 0.
struct ConvTaps { const float *taps, *bias, *more; size_t stride; };

struct Kernels {
  const char* name;
  // out[R][16] = rows of x times a panel. Quantised: x is a tile of ActBlocks, and n counts quant
  // blocks; F16, BF16, F32: x is float rows, stride in floats, and n counts columns.
  void (*tile[kFormats][kTiles])(const uint8_t* panel, int n, const void* x, size_t stride, Ahead ahead, float* out);
  // The same of several tiles of 16 rows, where it is faster for at least tiles_from rows; null where it is not.
  void (*tiles[kFormats])(const uint8_t* panel, int blocks, const ActTiles& rows, Ahead ahead, float* out);
  int tiles_from;
  // A whole number of kFloatRows rows of floats times several panels; null where a panel at a time is as fast.
  void (*floats[kFormats])(const FloatPanels& panels, int cols, const float* x, size_t stride, int rows);
  void (*quantise)(const float* x, int cols, ActRow out);
  void (*rms_norm)(const float* x, const float* weight, float eps, int n, float* out);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, int n, float* out);
  void (*clip_norm)(const float* x, const float* weight, float limit, int n, float* out);
  void (*softmax)(const float* x, int n, float* out);
  float (*root_mean_square)(const float* x, bool is_centred, int n);  // of x, or of x less its mean
  // out may be a or b; b is null where the kind is unary.
  void (*map)(Map kind, const float* a, const float* b, float number, int n, float* out);
  // Each of n numbers summed over its taps, oldest first.
  void (*conv)(const float* const* rows, const ConvTaps& weight, int taps, int n, float* out);
  void (*unit)(const float* x, float factor, int n, float* out);
  void (*keep)(const float* x, const float* dt, const float* a, int n, float* out);
  void (*learn)(const float* b, float factor, int n, float* out);
  // state: of these columns, a multiple of 16, (keys, stride); v and out: (columns)
  void (*delta)(const DeltaToken& token, float* state, int columns, const float* v, float* out);
  void (*keep_and_step)(const float* x, const float* dt, const float* a, int n, float* keep, float* step);
  void (*mamba)(const MambaToken& token, float* state, int columns, const float* v, float* out);  // as delta
  // Columns first … first + count - 1; state: of these columns; out: of all columns.
  void (*mamba1)(const Mamba1Token& token, float* state, int first, int count, float* out);
  void (*own_value)(const float* a, const float* b, const float* v, const float* y, int n, float* out);
  void (*wkv)(const WkvToken& token, float* state, int columns, const float* v, float* out);  // as delta
  void (*to_half)(const float* x, int n, uint16_t* out);  // n is a multiple of 16
  // Codes of a byte each, and a half or two for each 32 of them (the last may have 16); n is a multiple of 16.
  void (*to_codes)(KvFormat f, const float* x, int n, uint8_t* codes, uint16_t* scales, uint16_t* minima);
  int attend_rows;  // the most of a chunk
  void (*attend)(const AttendChunk& chunk);
  // Fold a chunk's (peak, total, out) of so many rows into the running ones; each row has n values.
  void (*merge)(int rows, float* peak, float* total, float* out, const float* peak2, const float* total2,
                const float* out2, int n);
  void (*divide)(const float* x, float by, int n, float* out);

  // Sampling: sample_kernels.inc and sample_luck.inc say more. n is at least 1 everywhere.
  void (*row_stats)(const float* x, size_t n, RowStats* out);
  float (*max_of)(const float* x, size_t n);
  void (*group_max)(const float* x, size_t n, size_t count, float* groups);
  size_t (*collect)(const float* x, size_t n, float least, uint32_t* out);  // 16 more than it gets
  double (*exp_sum)(const float* x, size_t n, float peak);
  double (*exp_sum_near)(const float* x, size_t n, float peak);  // within a part in 100,000
  void (*exp_each)(const float* x, size_t n, float peak, double* out);
  double (*ordered_sum)(const double* x, size_t n);
  void (*luck_all)(size_t n, uint64_t place, uint64_t seed, uint32_t* out);  // room for 128 more
  void (*luck_some)(const uint32_t* ids, size_t n, uint64_t place, uint64_t seed,
                    uint32_t* out);  // both: room for 32 more
  float (*bounds)(const float* x, const uint32_t* words, size_t n, float top, float* out);
  // sample_observe.inc
  double (*exp_sum_deep)(const float* x, size_t n, float peak, double* depth);
  size_t (*rank_of)(const float* x, size_t n, size_t index);
  void (*logit_histogram)(const float* x, size_t n, float peak, uint32_t* counts);  // kHistogram of them
};

const Kernels* kernels_generic();
const Kernels* kernels_avx2();
const Kernels* kernels_avxvnni();
const Kernels* kernels_avx512();
const Kernels* kernels_i8mm();
const Kernels* kernels_neon();
const Kernels* kernels_wasm();
// avx512 with Intel's matrix units; null where the system does not let this process use them, or where they
// compute other bits than the generic tier. amx_refusal says which, in a sentence; it is empty where nothing was refused.
const Kernels* kernels_amx();
const char* amx_refusal();
// generic, with the matrix units' path in plain C++: on any machine.
const Kernels* kernels_amx_plain();

// The tier of this name, "" for the best. Throws std::invalid_argument where this machine lacks it.
const Kernels* choose_kernels(const char* name);
// Names of all tiers this machine can run, best first, comma-separated.
const char* available_kernels();

}  // namespace cutaway
