// What the two kernels that look up rows share: an op's numbers, and which row is wanted.
struct Op {
  list: u32,  // 0: tokens, 1: positions, 2: types
  matrix: u32, panel_words: u32, columns: u32, factor: u32,
  first: u32, last: u32,  // of the matrix's rows, those in this piece of it
  out: u32, out_width: u32,
}
alias Kept = u32;
fn row_of(list: u32, row: u32) -> u32 {
  return u32(lists[select(select(batch.types, batch.positions, list == 1u), batch.tokens, list == 0u) + row]);
}
