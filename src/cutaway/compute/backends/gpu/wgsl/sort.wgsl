// Sorts the items of a mixture by expert, in tiles of at most 32 items of one expert, so that a tile reads a matrix once.
//
// All numbers of the result are whole: the items in order; then for each tile the place of its first item, and how many it has.
struct Op { choices: u32, sorted: u32, used: u32, late: u32 }
alias Kept = u32;
const TILE: u32 = 32u;
var<workgroup> place: array<u32, COUNT>;  // for each expert, how many items it has; then, where these begin

fn expert_of(item: u32) -> u32 { return u32(floats[op.choices + 2u * item]); }

@compute @workgroup_size(256) fn main(@builtin(local_invocation_index) thread: u32) {
  let items = select(batch.rows, batch.logits, op.late != 0u) * op.used;
  for (var expert = thread; expert < COUNT; expert += 256u) {
    var count = 0u;
    for (var item = 0u; item < items; item++) { count += select(0u, 1u, expert_of(item) == expert); }
    place[expert] = count;
  }
  workgroupBarrier();
  if (thread == 0u) {
    var to = op.sorted + items;
    var begin = 0u;
    for (var expert = 0u; expert < COUNT; expert++) {
      let count = place[expert];
      for (var first = 0u; first < count; first += TILE) {
        floats[to] = f32(begin + first);
        floats[to + 1u] = f32(min(TILE, count - first));
        to += 2u;
      }
      place[expert] = begin;
      begin += count;
    }
    let end = op.sorted + items + 2u * ((items + TILE - 1u) / TILE + COUNT);
    for (; to < end; to += 2u) { floats[to + 1u] = 0.0; }
  }
  workgroupBarrier();
  for (var expert = thread; expert < COUNT; expert += 256u) {
    var to = op.sorted + place[expert];
    for (var item = 0u; item < items; item++) {
      if (expert_of(item) == expert) {
        floats[to] = f32(item);
        to += 1u;
      }
    }
  }
}
