// Matrices of codes times ROWS rows of activations, 1 to 8: each weight is read once for all rows.
//
// A workgroup has WIDE outputs of each row: neighbouring panels, or half as many panels of a gate and half as many of its up. Slices of
// threads make the terms of a stretch of quant blocks, in any order; then a thread for each output adds the output's terms to its chain,
// in the order of k. If the workgroup QUANTISES, the results of a gate and its up become a quant block for the matrix that reads it next.
const WIDE: u32 = select(32u, 64u, QUANTISES);
const SLICES: u32 = 256u / WIDE;
const STRETCH: u32 = min(32u, 2048u / (WIDE * TERMS * ROWS));  // quant blocks whose terms fit 16 kB, all that a workgroup has
const TEAMS: u32 = max(1u, SLICES / STRETCH);                  // slices that share a quant block, each with some of the rows
const CHAINS: u32 = (ROWS + SLICES - 1u) / SLICES;             // of a thread: rows slice, slice + SLICES, …
var<workgroup> terms: array<vec2<f32>, STRETCH * TERMS * ROWS * WIDE>;  // and at the end the products, in x

fn term_at(block: u32, term: u32, row: u32, output: u32) -> u32 { return ((block * TERMS + term) * ROWS + row) * WIDE + output; }

@compute @workgroup_size(256) fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let output = thread % WIDE;
  let row_of_panel = output & 15u;
  let slice = thread / WIDE;
  let place = place_of(at.x, output >> 4u, at.y, WIDE / 16u);
  let mine = part(place.part);
  let is_there = place.panel < mine.panels;
  let panel = mine.panel + place.panel * op.panel_words;
  let first_row = at.y * ROWS;
  let rows = min(ROWS, rows_of_op() - first_row);
  var sum: array<f32, CHAINS>;
  for (var first = 0u; first < op.columns; first += STRETCH) {
    let blocks = min(STRETCH, op.columns - first);
    if (is_there) {
      for (var b = slice / TEAMS; b < blocks; b += SLICES / TEAMS) {
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
            if (ADDS_MINIMA) { terms[to + ROWS * WIDE] = vec2(minimum, bitcast<f32>(quants[x + sum_at(s)])); }
          }
        }
      }
    }
    workgroupBarrier();
    if (is_there) {
      for (var chain = 0u; slice + chain * SLICES < rows; chain++) {
        for (var t = 0u; t < blocks * TERMS; t++) {
          let term = terms[term_at(0u, t, slice + chain * SLICES, output)];
          sum[chain] = fused(term.x, term.y, sum[chain]);
        }
      }
    }
    workgroupBarrier();
  }
  let row_of_matrix = place.panel * 16u + row_of_panel;
  let is_output = is_there && row_of_matrix < mine.rows;
  for (var chain = 0u; slice + chain * SLICES < rows; chain++) {
    let r = slice + chain * SLICES;
    if (is_output) { terms[r * WIDE + output].x = amend(mine, row_of_matrix, first_row + r, sum[chain]); }
  }
  workgroupBarrier();
  for (var chain = 0u; slice + chain * SLICES < rows; chain++) {
    if (!is_output) { continue; }
    let r = slice + chain * SLICES;
    var y = terms[r * WIDE + output].x;
    if (op.mode == GATE) {
      if (op.count == 1u) { y = elementwise(y, y, number(op.number)); }
      else if (output < WIDE / 2u) { y = elementwise(y, terms[r * WIDE + output + WIDE / 2u].x, number(op.number)); }
      else { continue; }
    }
    put(mine, row_of_matrix, first_row + r, y);
    if (QUANTISES) { terms[r * WIDE + output].y = y; }
  }
  if (QUANTISES) {
    workgroupBarrier();
    if (thread < rows && is_there) {
      for (var i = 0u; i < 32u; i++) { block_of_32[i] = terms[thread * WIDE + i].y; }
      quantise(op.quants + ((first_row + thread) * op.quant_blocks + at.x) * 16u);
    }
  }
}
