// The matrices of a linear op, which lie in `tables` one after the other, and what becomes of a product.
//
// In a mixture of EXPERTS a row of the grid is an item: one expert that a row chose. The item's matrices are those of this expert.
struct Op {
  x: u32,         // the input's first number, or the first word of its quant blocks
  x_width: u32,   // numbers, or quant blocks, of a row of it
  columns: u32,   // numbers, or quant blocks, that a matrix reads
  panel_words: u32,
  mode: u32,      // STORE, ADD, or GATE of the two matrices
  late: u32,      // whether its rows are those whose logits are wanted
  parts: u32, count: u32,  // where the matrices are listed, and how many the op, or each of its experts, has
  choices: u32, used: u32,  // for each row, by rank: the expert and its weight; and how many experts a row chose
  spread: u32,              // whether all items of a row read the same input, that row's
  weighs: u32,              // whether products are multiplied by the expert's weight
  number: u32,              // of the elementwise op
  sorted: u32,              // for a mixture, the items by expert; see sort.wgsl
  quants: u32, quant_blocks: u32,  // where a gate's quant blocks go, and how many a row has
}
alias Kept = u32;
const STORE = 0u;
const ADD = 1u;
const GATE = 2u;

struct Part {
  panel: u32,   // the first word of it in `weights`
  panels: u32, rows: u32,
  out: u32, out_width: u32,
  column: u32,  // the first number, or quant block, that it reads of a row
  factor: u32,  // of all products
  bias: u32,    // NONE: none
}
fn part(index: u32) -> Part {
  let at = op.parts + 8u * index;
  return Part(tables[at], tables[at + 1u], tables[at + 2u], tables[at + 3u], tables[at + 4u], tables[at + 5u], tables[at + 6u], tables[at + 7u]);
}
// The panel that one side of workgroup `group` has. Its sides have neighbouring panels of a matrix, or half of them have panels of a
// gate, and half those of its up. The last panel of a matrix may have no neighbour.
struct Place { part: u32, panel: u32 }
fn place_of(group: u32, side: u32, item: u32, sides: u32) -> Place {
  var first = 0u;
  if (EXPERTS) { first = u32(floats[op.choices + 2u * item]) * op.count; }
  if (op.mode == GATE && op.count == 2u) { return Place(first + 2u * side / sides, group * (sides / 2u) + side % (sides / 2u)); }
  if (EXPERTS) { return Place(first, sides * group + side); }
  var found = Place(0u, group);
  while (found.part + 1u < op.count) {
    let pairs = (tables[op.parts + 8u * found.part + 1u] + 1u) / 2u;
    if (found.panel < pairs) { break; }
    found.panel -= pairs;
    found.part += 1u;
  }
  return Place(found.part, 2u * found.panel + side);
}
fn rows_of_op() -> u32 {
  let rows = select(batch.rows, batch.logits, op.late != 0u);
  if (EXPERTS) { return rows * op.used; }
  return rows;
}
// The row of the input from which a row of the output is computed.
fn input_row(row: u32) -> u32 {
  if (EXPERTS) { return select(row, row / op.used, op.spread != 0u); }
  return row;
}

// Finishes a chain with the matrix's factor, the expert's weight, and a bias.
fn amend(of_part: Part, row_of_matrix: u32, row: u32, sum: f32) -> f32 {
  var y = sum;
  if (of_part.factor != 0x3f800000u) { y = mul(y, number(of_part.factor)); }
  if (EXPERTS) {  // a product is linear in what is read
    if (op.weighs != 0u) { y = mul(y, floats[op.choices + 2u * row + 1u]); }
  }
  if (of_part.bias != NONE) { y = add(y, vector(of_part.bias + row_of_matrix)); }
  return y;
}
fn put(of_part: Part, row_of_matrix: u32, row: u32, y: f32) {
  let to = of_part.out + row * of_part.out_width + row_of_matrix;
  if (op.mode == ADD) { floats[to] = add(floats[to], y); } else { floats[to] = y; }
}
