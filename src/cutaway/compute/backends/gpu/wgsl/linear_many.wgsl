// Matrices of codes times many rows of activations, in tiles of 32 outputs by 32 rows.
//
// Four quant blocks at a time are unpacked into the workgroup's memory, for all its rows. A thread has the chains of 2 outputs by 4
// rows, each in the order of k; the outputs are one row of each of two panels, or of a gate and its up. In a mixture of EXPERTS the
// rows are items that chose the same expert.
const STAGED: u32 = 4u;
var<workgroup> w: array<u32, STAGED * 8u * 32u>;               // codes: block, group, output
var<workgroup> scales: array<f32, STAGED * SUBS * 32u>;
var<workgroup> minima: array<f32, STAGED * SUBS * 32u>;        // or codes that stand for 0
var<workgroup> x: array<u32, 32u * STAGED * 16u>;              // row, block
struct Tile { first: u32, rows: u32 }
var<workgroup> tile: Tile;

fn row_of(r: u32) -> u32 {
  if (EXPERTS) { return u32(floats[op.sorted + tile.first + r]); }
  return tile.first + r;
}

@compute @workgroup_size(128) fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  if (thread == 0u) {
    let of_tile = op.sorted + rows_of_op() + 2u * at.y;
    if (EXPERTS) { tile = Tile(u32(floats[of_tile]), u32(floats[of_tile + 1u])); }
    else { tile = Tile(at.y * 32u, min(32u, rows_of_op() - at.y * 32u)); }
  }
  let rows = workgroupUniformLoad(&tile).rows;
  if (rows == 0u) { return; }
  let row_of_panel = thread & 15u;
  let team = thread >> 4u;  // of four rows
  var place: array<Place, 2>;
  var of_side: array<Part, 2>;
  for (var side = 0u; side < 2u; side++) {
    place[side] = place_of(at.x, side, row_of(0u), 2u);
    of_side[side] = part(place[side].part);
  }
  var sum: array<f32, 8>;  // side, row
  for (var first = 0u; first < op.columns; first += STAGED) {
    let blocks = min(STAGED, op.columns - first);
    for (var i = thread; i < blocks * 8u * 32u; i += 128u) {
      let output = i & 31u;
      let side = output >> 4u;
      if (place[side].panel < of_side[side].panels) {
        let panel = of_side[side].panel + place[side].panel * op.panel_words;
        w[i] = codes(block_of(panel, first + (i >> 8u)) + (output & 15u), (i >> 5u) & 7u);
      }
    }
    for (var i = thread; i < blocks * SUBS * 32u; i += 128u) {
      let output = i & 31u;
      let side = output >> 4u;
      if (place[side].panel < of_side[side].panels) {
        let panel = of_side[side].panel + place[side].panel * op.panel_words;
        let block = first + (i >> 5u) / SUBS;
        scales[i] = scale_of(panel, block, (i >> 5u) % SUBS, output & 15u);
        if (ADDS_MINIMA) { minima[i] = minimum_of(panel, block, (i >> 5u) % SUBS, output & 15u); }
        if (SCALE == GROUP) { minima[i] = f32(zero_of(panel, block, output & 15u)); }
      }
    }
    for (var i = thread; i < 32u * blocks * 16u; i += 128u) {
      let row = i / (blocks * 16u);
      let within = i % (blocks * 16u);
      if (row < rows) {
        x[row * STAGED * 16u + within] = quants[op.x + (input_row(row_of(row)) * op.x_width + of_side[0].column + first) * 16u + within];
      }
    }
    workgroupBarrier();
    for (var b = 0u; b < blocks; b++) {
      for (var s = 0u; s < SUBS; s++) {
        let begin = s * (SUB / 4u);
        for (var r = 0u; r < 4u; r++) {
          let of_row = ((team * 4u + r) * STAGED + b) * 16u;
          let step_size = bitcast<f32>(x[of_row + 8u]);
          let minus = bitcast<i32>(x[of_row + minus_at(s)]);
          for (var side = 0u; side < 2u; side++) {
            let output = side * 16u + row_of_panel;
            let scale_at = (b * SUBS + s) * 32u + output;
            var dot = 0;
            if (STARTS) { dot = minus << u32(max(OFFSET, 0)); }
            if (SCALE == GROUP) { dot += i32(minima[scale_at]) * minus; }
            if (LIFT > 0) { dot -= LIFT * minus; }
            for (var group = begin; group < begin + SUB / 4u; group++) {
              dot += dot4I8Packed(w[(b * 8u + group) * 32u + output], x[of_row + group]);
            }
            let chain = side * 4u + r;
            sum[chain] = fused(f32(dot), mul(scales[scale_at], step_size), sum[chain]);
            if (ADDS_MINIMA) { sum[chain] = fused(minima[scale_at], bitcast<f32>(x[of_row + sum_at(s)]), sum[chain]); }
          }
        }
      }
    }
    workgroupBarrier();
  }
  for (var r = 0u; r < 4u; r++) {
    if (team * 4u + r >= rows) { return; }
    let row = row_of(team * 4u + r);
    var y: array<f32, 2>;
    for (var side = 0u; side < 2u; side++) {
      let row_of_matrix = place[side].panel * 16u + row_of_panel;
      if (place[side].panel >= of_side[side].panels || row_of_matrix >= of_side[side].rows) { continue; }
      y[side] = amend(of_side[side], row_of_matrix, row, sum[side * 4u + r]);
      if (op.mode != GATE) { put(of_side[side], row_of_matrix, row, y[side]); }
    }
    let row_of_matrix = place[0].panel * 16u + row_of_panel;
    if (op.mode == GATE && row_of_matrix < of_side[0].rows) { put(of_side[0], row_of_matrix, row, elementwise(y[0], y[1], number(op.number))); }
  }
}
