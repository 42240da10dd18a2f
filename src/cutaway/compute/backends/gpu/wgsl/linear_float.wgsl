// Matrices of floats: each output is one chain over all k. A workgroup has 32 outputs by TEAMS * ROWS rows, and a thread has one output
// of ROWS rows. All threads load what the workgroup reads.
const STAGED: u32 = 64u;  // columns
var<workgroup> w: array<f32, STAGED * 32u>;
var<workgroup> x: array<f32, STAGED * TEAMS * ROWS>;

@compute @workgroup_size(128) fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let rows = rows_of_op();
  let first_row = at.y * TEAMS * ROWS;
  let output = thread & 31u;
  let side = output >> 4u;
  let team = thread >> 5u;
  let place = place_of(at.x, side, at.y, 2u);
  let mine = part(place.part);
  let is_there = place.panel < mine.panels;
  var sum: array<f32, ROWS>;
  for (var first = 0u; first < op.columns; first += STAGED) {
    let count = min(STAGED, op.columns - first);
    for (var i = team; i < count; i += 4u) {
      if (is_there) { w[i * 32u + output] = weight(mine.panel + place.panel * op.panel_words, first + i, output & 15u); }
    }
    for (var i = thread; i < count * TEAMS * ROWS; i += 128u) {
      let row = i / count;
      if (first_row + row < rows) {
        x[row * STAGED + i % count] = floats[op.x + input_row(first_row + row) * op.x_width + mine.column + first + i % count];
      }
    }
    workgroupBarrier();
    for (var i = 0u; i < count && team < TEAMS; i++) {
      for (var r = 0u; r < ROWS; r++) { sum[r] = fused(w[i * 32u + output], x[(team * ROWS + r) * STAGED + i], sum[r]); }
    }
    workgroupBarrier();
  }
  let row_of_matrix = place.panel * 16u + (output & 15u);
  for (var r = 0u; r < ROWS; r++) {
    let row = first_row + team * ROWS + r;
    let is_output = team < TEAMS && row < rows && is_there && row_of_matrix < mine.rows;
    var y = 0.0;
    if (is_output) { y = amend(mine, row_of_matrix, row, sum[r]); }
    w[thread] = y;
    workgroupBarrier();
    if (is_output && op.mode != GATE) { put(mine, row_of_matrix, row, y); }
    if (is_output && op.mode == GATE) {
      if (op.count == 1u) { put(mine, row_of_matrix, row, elementwise(y, y, number(op.number))); }
      else if (side == 0u) { put(mine, row_of_matrix, row, elementwise(y, w[thread + 16u], number(op.number))); }
    }
    workgroupBarrier();
  }
}
