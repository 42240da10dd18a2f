// A query head of a row over a chunk of 256 tokens: a thread a token for the scores, 16 for their sum, a thread a dimension for the mix.
var<workgroup> share: array<f32, 256>;
var<workgroup> tree: array<f32, 256>;
var<workgroup> query: array<f32, 1024>;

fn block_at(table: u32, token: u32) -> u32 { return u32(lists[table + token / 32u]) * op.block_bytes; }

// What a query and a key say of their distance (DeBERTa, arXiv 2006.03654), or what is added by distance alone.
fn by_distance(row: u32, head: u32, token: i32) -> f32 {
  let distance = position_of(row) - token;
  if (op.bias != NONE) { return vector(u32(i32(op.bias + head * op.bias_count + op.bias_count / 2u) - distance)); }
  let which = tables[u32(i32(op.related + op.related_count / 2u) + distance)];
  let first = u32(lists[batch.segments + 3u * u32(lists[batch.segment + row])]);
  let of_query = floats[op.of_query + row * op.of_query_width + head * op.per_head + which];
  let of_key = floats[op.of_key + (first + u32(token)) * op.of_key_width + head * op.per_head + which];
  return mul(add(of_query, of_key), number(op.scale));
}

// The tokens that a row sees of all that are stored: from the first to before the end.
struct Span { first: i32, end: i32 }
fn span_of(row: u32) -> Span {
  let position = position_of(row);
  var limit = lists[batch.limits + row];
  if (op.reach != 0u) { limit = min(limit, position + i32(op.reach)); }
  var first = select(0, position - i32(op.back) + 1, op.back != 0u);
  if (op.chunked != 0u) { first = position / i32(op.chunked) * i32(op.chunked); }
  return Span(max(first, 0), limit + 1);
}

fn score_of(row: u32, head: u32, token: u32, block: u32, keys: Head) -> f32 {
  var sum = 0.0;
  for (var d = 0u; d < op.head_dim; d++) { sum = fused(key_of(block, keys, token & 31u, d), query[d], sum); }
  var score = mul(sum, number(op.scale));
  if (op.softcap != 0u) { score = softcapped(score, number(op.softcap)); }
  if (op.bias != NONE || op.related != NONE) { score = add(score, by_distance(row, head, i32(token))); }
  return score;
}

@compute @workgroup_size(256) fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let head = at.x;
  let row = at.y;
  let kv_head = head / (op.heads / op.kv_heads);
  let seen = span_of(row);
  let sequence = u32(lists[batch.sequence + row]);
  let table = select(batch.tables, batch.window_tables, op.window != 0u) + sequence * batch.table_width;
  let keys = keys_head(op.head_dim);
  let keys_at = op.keys + kv_head * keys.end;
  let wide = padded(width_of_value());
  for (var d = thread; d < op.head_dim; d += 256u) { query[d] = floats[op.q + row * op.q_width + head * op.head_dim + d]; }
  var begin = seen.first / 256;
  var end = (seen.end + 255) / 256;
  if (SPLIT) {  // a workgroup for each chunk; else one for all of them
    begin = max(begin, i32(at.z));
    end = min(end, i32(at.z) + 1);
    if (begin >= end && thread == 0u) { floats[partial_of(row, head, at.z)] = NOTHING; }
  }
  var peak = NOTHING;
  var total = 0.0;
  var sum: array<f32, 4>;  // numbers thread, thread + 256, … of the output
  for (var chunk = begin; chunk < end; chunk++) {
    let first = max(chunk * 256, seen.first / 32 * 32);
    let last = min(chunk * 256 + 256, seen.end);
    let token = chunk * 256 + i32(thread);
    var is_seen = token >= max(first, seen.first) && token < last;
    if (is_seen && batch.hidden_from != NONE) {
      let hidden_from = bitcast<f32>(lists[batch.hidden_from + sequence * batch.table_width * 32u + u32(token)]);
      is_seen = f32(position_of(row)) < hidden_from;
    }
    workgroupBarrier();
    var score = NOTHING;
    if (is_seen) { score = score_of(row, head, u32(token), block_at(table, u32(token)) + keys_at, keys); }
    tree[thread] = score;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half /= 2u) {
      if (thread < half) { tree[thread] = max(tree[thread], tree[thread + half]); }
      workgroupBarrier();
    }
    let next = workgroupUniformLoad(&tree[0]);
    share[thread] = select(exp_nonpositive(sub(score, next)), 0.0, score == NOTHING);
    workgroupBarrier();
    if (thread < 16u) {
      var lane = 0.0;
      for (var t = thread; t < 256u; t += 16u) { lane = add(lane, share[t]); }  // what is not seen adds 0
      tree[thread] = lane;
    }
    workgroupBarrier();
    for (var half = 8u; half > 0u; half /= 2u) {
      if (thread < half) { tree[thread] = add(tree[thread], tree[thread + half]); }
      workgroupBarrier();
    }
    if (next == NOTHING) { continue; }
    var by = vec2(0.0, 1.0);
    if (peak != NOTHING) { by = factors_of(peak, next); }
    for (var i = 0u; thread + i * 256u < wide; i++) {
      let d = thread + i * 256u;
      var mixed = 0.0;
      if (LATENT) { mixed = mix_keys(table, keys_at, keys, op.value_first + d, u32(first), u32(last)); }
      else { mixed = mix(table, kv_head, d, u32(first), u32(last)); }
      if (peak == NOTHING) { sum[i] = mixed; } else { sum[i] = fused(mixed, by.y, mul(sum[i], by.x)); }
    }
    if (peak == NOTHING) { total = tree[0]; } else { total = add(mul(total, by.x), mul(tree[0], by.y)); }
    peak = max(peak, next);
  }
  for (var i = 0u; thread + i * 256u < wide; i++) {
    let d = thread + i * 256u;
    if (!SPLIT) {
      if (d < width_of_value()) { finish(row, head, d, peak, total, sum[i]); }
    } else if (begin < end) {
      let to = partial_of(row, head, at.z);
      floats[to + 2u + d] = sum[i];
      if (d == 0u) { floats[to] = peak; floats[to + 1u] = total; }
    }
  }
}

// A number of the output: one chain over the tokens.
fn mix(table: u32, kv_head: u32, d: u32, first: u32, end: u32) -> f32 {
  let size = padded(op.head_dim);
  let head = values_head(op.head_dim);
  let values_at = op.values + kv_head * head.end;
  var sum = 0.0;
  for (var token = first; token < end; token++) {
    sum = fused(value_of(block_at(table, token) + values_at, head, size, token & 31u, d), share[token & 255u], sum);
  }
  return sum;
}

// The same where values are numbers of the keys: 16 chains, of the tokens t mod 16, and then their sum.
fn mix_keys(table: u32, keys_at: u32, keys: Head, d: u32, first: u32, end: u32) -> f32 {
  var lane: array<f32, 16>;
  for (var begin = first; begin < end; begin += 16u) {
    for (var i = 0u; i < 16u; i++) {
      let token = begin + i;
      if (token < end) { lane[i] = fused(key_of(block_at(table, token) + keys_at, keys, token & 31u, d), share[token & 255u], lane[i]); }
    }
  }
  for (var half = 8u; half > 0u; half /= 2u) {
    for (var i = 0u; i < half; i++) { lane[i] = add(lane[i], lane[i + half]); }
  }
  return lane[0];
}
