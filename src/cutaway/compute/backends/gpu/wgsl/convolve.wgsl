// Sums each number, weighted, over the last tokens of its sequence. The state has the inputs of all these tokens but the newest.
struct Op {
  x: u32, x_width: u32, out: u32, out_width: u32, width: u32, taps: u32,
  weight: u32, bias: u32,             // (taps, width), the oldest token's first; NONE: no bias
  more: u32, more_width: u32, group: u32,  // what a row adds to the weights of each group of numbers; NONE: nothing
  state: u32, state_size: u32,        // where in a state this layer's floats begin; floats of a state
  other: u32, other_width: u32, is_second: u32, result: u32, result_width: u32, number: u32,  // see ending.wgsl
}
alias Kept = f32;
// The input `back` rows before a row: a row of the batch, or of the state, which has the rows before the sequence's first.
fn input(row: u32, back: u32, column: u32) -> f32 {
  let segment = batch.segments + 3u * u32(lists[batch.segment + row]);
  let first = u32(lists[segment]);
  if (row >= first + back) { return floats[op.x + (row - back) * op.x_width + column]; }
  let place = lists[segment + 2u];
  if (place < 0) { return 0.0; }
  let tap = op.taps - 1u + (row - first) - back;  // of the taps - 1 inputs before the sequence's first row
  return kept[u32(place) * op.state_size + op.state + tap * op.width + column];
}
// Stores the state after a row. A state that overwrites the one before the sequence is stored last, because that is read until then.
fn store(index: u32, column: u32, is_last: bool) {
  let row = u32(lists[batch.stored + 2u * index]);
  let place = lists[batch.stored + 2u * index + 1u];
  if ((place == lists[batch.segments + 3u * u32(lists[batch.segment + row]) + 2u]) != is_last) { return; }
  var inputs: array<f32, 16>;
  for (var t = 0u; t + 1u < op.taps; t++) { inputs[t] = input(row, op.taps - 2u - t, column); }
  for (var t = 0u; t + 1u < op.taps; t++) { kept[u32(place) * op.state_size + op.state + t * op.width + column] = inputs[t]; }
}
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  if (at.x >= op.width) { return; }
  if (STORES) {
    for (var i = 0u; i < batch.stored_count; i++) { store(i, at.x, false); }
    for (var i = 0u; i < batch.stored_count; i++) { store(i, at.x, true); }
    return;
  }
  var sum = 0.0;
  if (op.bias != NONE) { sum = vector(op.bias + at.x); }
  for (var t = 0u; t < op.taps; t++) {
    var weight = vector(op.weight + t * op.width + at.x);
    if (op.more != NONE) { weight = add(weight, floats[op.more + at.y * op.more_width + at.x / op.group * op.taps + t]); }
    sum = fused(input(at.y, op.taps - 1u - t, at.x), weight, sum);
  }
  put(at.y, at.x, sum);
}
