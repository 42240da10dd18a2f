// What every kernel of a plan has: the step, the lists of the step's rows, and the memory of the plan.
struct Batch {
  zero: u32,  // 0, which no compiler knows
  rows: u32,
  logits: u32,
  table_width: u32,
  chunks: u32,     // how many chunks of 256 tokens the row that sees most tokens sees
  sequences: u32,  // runs of rows that are of one sequence
  // Where in `lists` each of these lists begins:
  tokens: u32,
  positions: u32,
  types: u32,
  sequence: u32,       // the sequence of each row
  limits: u32,         // the last position that each row sees
  window_ends: u32,    // the position back from which each row's windows count
  logit_rows: u32,
  tables: u32,         // KV blocks for layers that see the whole text
  window_tables: u32,  // places of KV blocks for layers with a window
  segment: u32,        // the segment of each row
  segments: u32,       // the first row, how many rows, the place of the state before them (-1: none)
  stored: u32,         // row, and the place where the state after it goes
  stored_count: u32,
  hidden_from: u32,    // floats; NONE: nothing is hidden
  angles: u32,         // for each rotation, a row of cosines and sines for each row
  tiles: u32,          // where each list of tiles begins, then these lists; a tile is a first row and how many rows, of one sequence
}
const NONE: u32 = 0xffffffffu;
@group(0) @binding(0) var<uniform> batch: Batch;
@group(0) @binding(1) var<uniform> op: Op;
@group(0) @binding(2) var<storage, read> lists: array<i32>;
@group(0) @binding(3) var<storage, read_write> floats: array<f32>;
@group(0) @binding(4) var<storage, read_write> quants: array<u32>;  // quant blocks of activations, 16 words each
@group(0) @binding(5) var<storage, read> tables: array<u32>;        // vectors of weights, and lists of an op's matrices
@group(0) @binding(6) var<storage, read> weights: array<u32>;       // packed matrices
@group(0) @binding(7) var<storage, read_write> kept: array<Kept>;   // KV blocks, or states

// Whether a thread's results may differ from the CPU's. Kernels that note this write 1 to the first of `floats` at their end.
var<private> hurt: u32;
fn note_hurt(is_hurt: bool) { hurt |= u32(is_hurt); }

fn zero() -> u32 { return batch.zero; }
fn number(bits: u32) -> f32 { return bitcast<f32>(bits); }
fn vector(at: u32) -> f32 { return bitcast<f32>(tables[at]); }
fn position_of(row: u32) -> i32 { return lists[batch.positions + row]; }
