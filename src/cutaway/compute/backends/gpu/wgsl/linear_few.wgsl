// Matrices of codes times ROWS rows of activations, 1 to 8: each weight is read once for all of them.
//
// A workgroup has 32 rows of the output: two panels, or one panel of a gate and the same of its up. Eight slices of threads make the
// terms of a stretch of quant blocks, in any order; then a thread for each output adds them to its chain, in the order of k.
const STRETCH: u32 = min(32u, 60u / (TERMS * ROWS));  // quant blocks whose terms, and the products, fit 16 kB
const TEAMS: u32 = max(1u, 8u / STRETCH);             // slices that share a quant block, each with some of the rows
var<workgroup> terms: array<vec2<f32>, STRETCH * TERMS * ROWS * 32u>;
var<workgroup> products: array<f32, ROWS * 32u>;

fn term_at(block: u32, term: u32, row: u32, output: u32) -> u32 { return ((block * TERMS + term) * ROWS + row) * 32u + output; }

@compute @workgroup_size(256) fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let output = thread & 31u;
  let side = output >> 4u;
  let row_of_panel = output & 15u;
  let slice = thread >> 5u;
  let place = place_of(at.x, side, at.y);
  let mine = part(place.part);
  let is_there = place.panel < mine.panels;
  let panel = mine.panel + place.panel * op.panel_words;
  let first_row = at.y * ROWS;
  let rows = min(ROWS, rows_of_op() - first_row);
  var sum = 0.0;
  for (var first = 0u; first < op.columns; first += STRETCH) {
    let blocks = min(STRETCH, op.columns - first);
    if (is_there) {
      for (var b = slice / TEAMS; b < blocks; b += 8u / TEAMS) {
        let codes_at = block_of(panel, first + b) + row_of_panel;
        var zero_code = 0;
        if (SCALE == GROUP) { zero_code = zero_of(panel, first + b, row_of_panel); }
        for (var s = 0u; s < SUBS; s++) {
          let scale = scale_of(panel, first + b, s, row_of_panel);
          var minimum = 0.0;
          if (ADDS_MINIMA) { minimum = minimum_of(panel, first + b, s, row_of_panel); }
          for (var r = slice % TEAMS; r < rows; r += TEAMS) {
            let x = op.x + (input_row(first_row + r) * op.x_width + mine.column + first + b) * 16u;
            let to = term_at(b, s * (TERMS / SUBS), r, output);
            terms[to] = vec2(f32(dot_of(codes_at, x, s, zero_code)), mul(scale, bitcast<f32>(quants[x + 8u])));
            if (ADDS_MINIMA) { terms[to + ROWS * 32u] = vec2(minimum, bitcast<f32>(quants[x + sum_at(s)])); }
          }
        }
      }
    }
    workgroupBarrier();
    if (slice < rows && is_there) {
      for (var t = 0u; t < blocks * TERMS; t++) {
        let term = terms[term_at(0u, t, slice, output)];
        sum = fused(term.x, term.y, sum);
      }
    }
    workgroupBarrier();
  }
  let row_of_matrix = place.panel * 16u + row_of_panel;
  if (slice < rows && is_there && row_of_matrix < mine.rows) { products[slice * 32u + output] = amend(mine, row_of_matrix, first_row + slice, sum); }
  workgroupBarrier();
  if (slice >= rows || !is_there || row_of_matrix >= mine.rows) { return; }
  let y = products[slice * 32u + output];
  if (op.mode != GATE) { put(mine, row_of_matrix, first_row + slice, y); }
  else if (op.count == 1u) { put(mine, row_of_matrix, first_row + slice, elementwise(y, y, number(op.number))); }
  else if (side == 0u) {
    put(mine, row_of_matrix, first_row + slice, elementwise(y, products[slice * 32u + output + 16u], number(op.number)));
  }
}
