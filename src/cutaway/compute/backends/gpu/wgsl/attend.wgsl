// Attends with query heads over chunks of 256 tokens. A workgroup has HEADS heads that share keys and values, of ROWS rows that follow
// each other in a text; an item is one head of one row. First a thread has a token, and reads its key once for all items. Then a thread
// has some numbers of the values, and reads them once for its items.
const ITEMS: u32 = HEADS * ROWS;
const TEAMS: u32 = 256u / DIMS;               // teams of threads, to which the items are dealt out; a thread has a number of a value
const DEALT: u32 = (ITEMS + TEAMS - 1u) / TEAMS;
var<workgroup> share: array<f32, ITEMS * 256u>;  // for each item and token the score, then the share
var<workgroup> query: array<f32, ITEMS * DIM>;
var<workgroup> lanes: array<f32, ITEMS * 16u>;

fn block_at(table: u32, token: u32) -> u32 { return u32(lists[table + token / 32u]) * op.block_bytes; }

// What is added to a score: what query and key say about their distance (DeBERTa, arXiv 2006.03654), or the query alone; or a bias by
// distance alone.
fn by_distance(row: u32, head: u32, token: i32) -> f32 {
  let distance = position_of(row) - token;
  if (op.bias != NONE) { return vector(u32(i32(op.bias + head * op.bias_count + op.bias_count / 2u) - distance)); }
  if (op.related == NONE) {
    if (distance < 0 || distance >= i32(op.per_head)) { return 0.0; }
    return floats[op.of_query + row * op.of_query_width + head * op.per_head + u32(distance)];
  }
  let which = tables[u32(i32(op.related + op.related_count / 2u) + distance)];
  let first = u32(lists[batch.segments + 3u * u32(lists[batch.segment + row])]);
  let of_query = floats[op.of_query + row * op.of_query_width + head * op.per_head + which];
  let of_key = floats[op.of_key + (first + u32(token)) * op.of_key_width + head * op.per_head + which];
  return mul(add(of_query, of_key), number(op.scale));
}

// The rows of a workgroup: those of one sequence from the first on.
struct Tile { first: u32, rows: u32 }
fn tile_of(index: u32) -> Tile {
  if (ROWS == 1u) { return Tile(index, 1u); }
  let at = batch.tiles + u32(lists[batch.tiles + op.tiles]) + 2u * index;
  return Tile(u32(lists[at]), u32(lists[at + 1u]));
}

// Which of the stored tokens a row sees: those from `first` to the one before `end`.
struct Span { first: i32, end: i32 }
fn span_of(row: u32) -> Span {
  let position = position_of(row);
  let window_end = lists[batch.window_ends + row];
  var limit = lists[batch.limits + row];
  if (op.reach != 0u || op.causal != 0u) { limit = min(limit, position + i32(op.reach)); }
  var first = select(0, window_end - i32(op.back) + 1, op.back != 0u);
  if (op.chunked != 0u) { first = window_end / i32(op.chunked) * i32(op.chunked); }
  return Span(max(first, 0), limit + 1);
}
fn sees(span: Span, row: u32, sequence: u32, token: i32) -> bool {
  if (token < span.first || token >= span.end) { return false; }
  if (batch.hidden_from == NONE) { return true; }
  return f32(position_of(row)) < bitcast<f32>(lists[batch.hidden_from + sequence * batch.table_width * 32u + u32(token)]);
}

fn score_of(row: u32, head: u32, token: u32, product: f32) -> f32 {
  var score = mul(product, number(op.scale));
  if (op.softcap != 0u) { score = cap_softly(score, number(op.softcap)); }
  if (op.bias != NONE || op.per_head != 0u) { score = add(score, by_distance(row, head, i32(token))); }
  return score;
}

@compute @workgroup_size(256) fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let group = op.heads / op.kv_heads;
  let parts = (group + HEADS - 1u) / HEADS;
  let kv_head = at.x / parts;
  let first_head = kv_head * group + at.x % parts * HEADS;
  let heads = min(HEADS, group - at.x % parts * HEADS);
  let tile = tile_of(at.y);
  let sequence = u32(lists[batch.sequence + tile.first]);
  let table = select(batch.tables, batch.window_tables, op.window != 0u) + sequence * batch.table_width;
  let keys = keys_head(DIM);
  let keys_at = op.keys + kv_head * keys.end;
  let values = values_head(op.value_dim);
  let values_at = op.values + kv_head * values.end;
  let wide = padded(op.value_dim);
  let team = thread / DIMS;
  var spans: array<Span, ITEMS>;
  var begin = 0x7fffffff;
  var end = 0;
  for (var i = 0u; i < ITEMS; i++) {
    spans[i] = Span(0x40000000, 0);  // which sees nothing
    if (i / HEADS >= tile.rows || i % HEADS >= heads) { continue; }
    spans[i] = span_of(tile.first + i / HEADS);
    begin = min(begin, spans[i].first / 256);
    end = max(end, (spans[i].end + 255) / 256);
  }
  for (var j = thread; j < ITEMS * DIM; j += 256u) {
    let i = j / DIM;
    if (i / HEADS >= tile.rows || i % HEADS >= heads) { continue; }
    query[j] = floats[op.q + (tile.first + i / HEADS) * op.q_width + (first_head + i % HEADS) * DIM + j % DIM];
  }
  if (SPLIT) {  // a workgroup for each chunk; else one for all of them
    begin = max(begin, i32(at.z));
    end = min(end, i32(at.z) + 1);
    if (begin >= end && thread < heads) { floats[partial_of(tile.first, first_head + thread, at.z)] = NOTHING; }
  }
  var peak: array<f32, DEALT>;
  var total: array<f32, DEALT>;
  var sum: array<f32, DEALT * SLICES>;  // numbers d, d + 256, … of each item's output
  for (var k = 0u; k < DEALT; k++) { peak[k] = NOTHING; }
  for (var chunk = begin; chunk < end; chunk++) {
    let token = chunk * 256 + i32(thread);
    var lowest = chunk * 256 + 256;
    var highest = 0;
    for (var i = 0u; i < ITEMS; i++) {
      lowest = min(lowest, max(chunk * 256, spans[i].first / 32 * 32));
      highest = max(highest, min(chunk * 256 + 256, spans[i].end));
    }
    workgroupBarrier();
    var product = array<f32, ITEMS>();  // naga 29 sets what has no value to 0 once, not each time
    if (token >= lowest && token < highest) {
      let block = block_at(table, u32(token)) + keys_at;
      for (var d = 0u; d < DIM; d++) {
        let key = key_of(block, keys, u32(token) & 31u, d);
        for (var i = 0u; i < ITEMS; i++) { product[i] = fused(key, query[i * DIM + d], product[i]); }
      }
    }
    for (var i = 0u; i < ITEMS; i++) {
      let row = tile.first + i / HEADS;
      var score = NOTHING;
      if (sees(spans[i], row, sequence, token)) { score = score_of(row, first_head + i % HEADS, u32(token), product[i]); }
      share[i * 256u + thread] = score;
    }
    workgroupBarrier();
    if (thread < ITEMS * 16u) {
      var most = NOTHING;
      for (var t = thread & 15u; t < 256u; t += 16u) { most = max(most, share[thread / 16u * 256u + t]); }
      lanes[thread] = most;
    }
    workgroupBarrier();
    for (var half = 8u; half > 0u; half /= 2u) {
      if (thread < ITEMS * 16u && (thread & 15u) < half) { lanes[thread] = max(lanes[thread], lanes[thread + half]); }
      workgroupBarrier();
    }
    var next: array<f32, DEALT>;
    for (var k = 0u; k < DEALT; k++) { next[k] = lanes[min(team + k * TEAMS, ITEMS - 1u) * 16u]; }
    for (var i = 0u; i < ITEMS; i++) {
      let score = share[i * 256u + thread];
      share[i * 256u + thread] = select(exp_nonpositive(sub(score, lanes[i * 16u])), 0.0, score == NOTHING);
    }
    workgroupBarrier();
    if (thread < ITEMS * 16u) {
      var lane = 0.0;
      for (var t = thread & 15u; t < 256u; t += 16u) { lane = add(lane, share[thread / 16u * 256u + t]); }  // what is not seen adds 0
      lanes[thread] = lane;
    }
    workgroupBarrier();
    for (var half = 8u; half > 0u; half /= 2u) {
      if (thread < ITEMS * 16u && (thread & 15u) < half) { lanes[thread] = add(lanes[thread], lanes[thread + half]); }
      workgroupBarrier();
    }
    var by: array<vec2<f32>, DEALT>;
    for (var k = 0u; k < DEALT; k++) {
      by[k] = vec2(0.0, 1.0);
      if (peak[k] != NOTHING) { by[k] = factors_of(peak[k], next[k]); }
    }
    for (var s = 0u; s < SLICES; s++) {
      let d = thread % DIMS + s * 256u;
      if (d >= wide) { break; }
      var mixed = array<f32, DEALT>();
      if (LATENT) {
        for (var k = 0u; k < DEALT; k++) {
          let i = team + k * TEAMS;
          if (i >= ITEMS) { break; }
          let first = max(chunk * 256, spans[i].first / 32 * 32);
          mixed[k] = mix_keys(table, keys_at, keys, op.value_first + d, u32(first), u32(min(chunk * 256 + 256, spans[i].end)), i * 256u);
        }
      } else {
        for (var t = lowest; t < highest; t++) {
          let value = value_of(block_at(table, u32(t)) + values_at, values, wide, u32(t) & 31u, d);
          for (var k = 0u; k < DEALT; k++) {
            let i = team + k * TEAMS;
            if (i < ITEMS && t >= spans[i].first / 32 * 32 && t < spans[i].end) { mixed[k] = fused(value, share[i * 256u + (u32(t) & 255u)], mixed[k]); }
          }
        }
      }
      for (var k = 0u; k < DEALT; k++) {
        let to = k * SLICES + s;
        if (next[k] == NOTHING) { continue; }
        if (peak[k] == NOTHING) { sum[to] = mixed[k]; } else { sum[to] = fused(mixed[k], by[k].y, mul(sum[to], by[k].x)); }
      }
    }
    for (var k = 0u; k < DEALT; k++) {
      let more = lanes[min(team + k * TEAMS, ITEMS - 1u) * 16u];
      if (next[k] == NOTHING) { continue; }
      if (peak[k] == NOTHING) { total[k] = more; } else { total[k] = add(mul(total[k], by[k].x), mul(more, by[k].y)); }
      peak[k] = max(peak[k], next[k]);
    }
  }
  for (var k = 0u; k < DEALT; k++) {
    let i = team + k * TEAMS;
    let row = tile.first + i / HEADS;
    let head = first_head + i % HEADS;
    if (i / HEADS >= tile.rows || i % HEADS >= heads) { continue; }
    for (var s = 0u; s < SLICES; s++) {
      let d = thread % DIMS + s * 256u;
      if (!SPLIT) {
        if (d < op.value_dim) { finish(row, head, d, peak[k], total[k], sum[k * SLICES + s]); }
      } else if (begin < end && d < wide) {
        let to = partial_of(row, head, at.z);
        floats[to + 2u + d] = sum[k * SLICES + s];
        if (d == 0u) { floats[to] = peak[k]; floats[to + 1u] = total[k]; }
      }
    }
  }
  if (!SPLIT && op.quants != NONE) {
    storageBarrier();
    for (var j = thread; j < tile.rows * heads * (op.value_dim / 32u); j += 256u) {
      let item = j / (op.value_dim / 32u);
      quantise_block(tile.first + item / heads, first_head + item % heads, j % (op.value_dim / 32u));
    }
  }
}

// Mixes values as above where they are numbers of the keys: token t is in chain t mod 16, and the 16 chains are then added up.
fn mix_keys(table: u32, keys_at: u32, keys: Head, d: u32, first: u32, end: u32, shares: u32) -> f32 {
  var lane: array<f32, 16>;
  for (var begin = first; begin < end; begin += 16u) {
    for (var i = 0u; i < 16u; i++) {
      let token = begin + i;
      if (token < end) { lane[i] = fused(key_of(block_at(table, token) + keys_at, keys, token & 31u, d), share[shares + (token & 255u)], lane[i]); }
    }
  }
  for (var half = 8u; half > 0u; half /= 2u) {
    for (var i = 0u; i < half; i++) { lane[i] = add(lane[i], lane[i + half]); }
  }
  return lane[0];
}
