// Which experts a row's scores choose, and with which weights: Mixture.choose of compute/model/mixture.py, in numbers of 64 bits.
//
// A workgroup has a row, and a thread has some of the COUNT experts, which are in GROUPS groups. Each sum is computed by one thread, in the order of the experts.
struct Op {
  scores: u32, scores_width: u32,
  gating: u32,  // SOFTMAX, SIGMOID, SPARSEMIXER
  used: u32, normed: u32, scale: u32,
  used_groups: u32, best_of_group: u32,
  tolerance_low: u32, tolerance_high: u32,
  bias: u32,     // NONE: none
  choices: u32,  // of each row, by rank: the expert and its weight
}
alias Kept = u32;
const SOFTMAX = 0u;
const SIGMOID = 1u;
const SPARSEMIXER = 2u;
const LEAST = Double(0xffffffffu, 0xffefffffu);  // below all that is wanted
var<workgroup> score: array<f32, COUNT>;
var<workgroup> share: array<Double, COUNT>;
var<workgroup> wanted: array<Double, COUNT>;
var<workgroup> best: array<u32, 64>;
var<workgroup> whole: Double;
var<workgroup> chosen: array<u32, COUNT>;
var<workgroup> group_sum: array<Double, GROUPS>;

// The most wanted of the thread's experts that are left; of equals, the one with the lowest number; COUNT if none is left.
fn most_wanted(thread: u32) -> u32 {
  var found = COUNT;
  for (var i = thread; i < COUNT; i += 64u) {
    if (any(wanted[i] != LEAST) && (found == COUNT || greater(wanted[i], wanted[found]))) { found = i; }
  }
  return found;
}
fn better(a: u32, b: u32) -> bool {
  if (a == COUNT || b == COUNT) { return b == COUNT && a != COUNT; }
  if (greater(wanted[a], wanted[b])) { return true; }
  return !greater(wanted[b], wanted[a]) && a < b;
}
// Puts the most wanted of all experts into best[0].
fn find_best(thread: u32) {
  best[thread] = most_wanted(thread);
  workgroupBarrier();
  for (var half = 32u; half > 0u; half /= 2u) {
    if (thread < half && better(best[thread + half], best[thread])) { best[thread] = best[thread + half]; }
    workgroupBarrier();
  }
}

fn weigh(thread: u32) {
  var top = score[0];
  for (var i = 1u; i < COUNT; i++) { top = max(top, score[i]); }
  for (var i = thread; i < COUNT; i += 64u) {
    if (op.gating == SOFTMAX) { share[i] = exp_double(minus(widen(score[i]), widen(top))); continue; }
    let e = exp_double(widen(-abs(score[i])));
    share[i] = over(select(ONE, e, score[i] < 0.0), plus(ONE, e));
  }
  workgroupBarrier();
  if (thread == 0u) {
    whole = ONE;
    if (op.gating == SOFTMAX && (op.normed == 0u || op.bias != NONE || GROUPS > 1u)) {
      whole = ZERO;
      for (var i = 0u; i < COUNT; i++) { whole = plus(whole, share[i]); }
    }
  }
  workgroupBarrier();
  for (var i = thread; i < COUNT; i += 64u) {
    wanted[i] = widen(score[i]);
    if (op.bias != NONE) { wanted[i] = plus(over(share[i], whole), widen(vector(op.bias + i))); }
    else if (GROUPS > 1u) { wanted[i] = share[i]; }
  }
  workgroupBarrier();
}

// Keeps the groups whose two most wanted experts, or most wanted one, have the largest sums; experts of other groups are not wanted.
fn keep_groups() {
  let size = COUNT / GROUPS;
  for (var g = 0u; g < GROUPS; g++) {
    var first = LEAST;
    var second = LEAST;
    for (var i = g * size; i < (g + 1u) * size; i++) {
      if (greater(wanted[i], first)) { second = first; first = wanted[i]; }
      else if (greater(wanted[i], second)) { second = wanted[i]; }
    }
    group_sum[g] = first;
    if (op.best_of_group > 1u) { group_sum[g] = plus(first, second); }
  }
  for (var g = 0u; g < GROUPS; g++) {
    var rank = 0u;  // of those that come before it
    for (var h = 0u; h < GROUPS; h++) {
      if (greater(group_sum[h], group_sum[g]) || (!greater(group_sum[g], group_sum[h]) && h < g)) { rank += 1u; }
    }
    if (rank >= op.used_groups) {
      for (var i = g * size; i < (g + 1u) * size; i++) { wanted[i] = LEAST; }
    }
  }
}

fn put(row: u32, rank: u32, expert: u32, weight: f32) {
  let to = op.choices + 2u * (row * op.used + rank);
  floats[to] = f32(expert);
  floats[to + 1u] = weight;
}

// The share that the best expert left has among the experts left that score nearly as much.
fn share_of_best(expert: u32) -> f32 {
  let tolerance = Double(op.tolerance_low, op.tolerance_high);
  let peak = widen(score[expert]);
  var total = ZERO;
  for (var i = 0u; i < COUNT; i++) {
    if (all(wanted[i] == LEAST)) { continue; }
    let size = widen(abs(score[i]));
    let by = select(peak, size, greater(size, peak));
    if (!greater(over(minus(peak, widen(score[i])), by), tolerance)) { total = plus(total, share[i]); }
  }
  return narrow(times(over(share[expert], total), widen(number(op.scale))));
}

@compute @workgroup_size(64) fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  for (var i = thread; i < COUNT; i += 64u) {
    score[i] = floats[op.scores + at.y * op.scores_width + i];
    wanted[i] = widen(score[i]);
  }
  workgroupBarrier();
  if (op.gating != SPARSEMIXER) {
    weigh(thread);
    if (GROUPS > 1u) {
      if (thread == 0u) { keep_groups(); }
      workgroupBarrier();
    }
  }
  for (var rank = 0u; rank < op.used; rank++) {
    find_best(thread);
    let expert = best[0];
    if (op.gating == SPARSEMIXER) {
      for (var i = thread; i < COUNT; i += 64u) { share[i] = exp_double(minus(widen(score[i]), widen(score[expert]))); }
      workgroupBarrier();
      if (thread == 0u) { put(at.y, rank, expert, share_of_best(expert)); }
    }
    workgroupBarrier();
    if (thread == 0u) {
      chosen[rank] = expert;
      wanted[expert] = LEAST;
    }
    workgroupBarrier();
  }
  if (op.gating == SPARSEMIXER || thread != 0u) { return; }
  var total = whole;
  if (op.normed != 0u) {
    total = ZERO;
    for (var rank = 0u; rank < op.used; rank++) { total = plus(total, share[chosen[rank]]); }
  }
  for (var rank = 0u; rank < op.used; rank++) {
    put(at.y, rank, chosen[rank], narrow(times(over(share[chosen[rank]], total), widen(number(op.scale)))));
  }
}
