// Rotates a row's queries and keys, and stores its keys and values in their KV block. Before the rotation, each head's query and key
// may be normed by an RMS norm.
//
// A workgroup has one head of a row; query heads come first, then key heads, then value heads.
struct Op {
  q: u32, q_width: u32, k: u32, k_width: u32, v: u32, v_width: u32,
  heads: u32, kv_heads: u32, head_dim: u32, value_dim: u32,
  angles: u32,  // how many floats the rotations before this one have for each row
  pairs: u32, rotate_half: u32,
  block_bytes: u32, keys: u32, values: u32,  // where in a block these begin
  window: u32,      // whether blocks lie at the places that they have in layers with a window
  rotated: u32, rotated_width: u32,  // where queries go
  q_norm: u32, q_eps: u32, k_norm: u32, k_eps: u32,  // weights of the norms; NONE: none
}
var<workgroup> numbers: array<f32, 1024>;
var<workgroup> found: array<u32, 1024>;  // codes
var<workgroup> factor: f32;

fn normalise(weight: u32, eps: u32, thread: u32) {
  if (thread < 16u) {
    var squares = 0.0;
    for (var i = thread; i < op.head_dim; i += 16u) { squares = fused(numbers[i], numbers[i], squares); }
    lanes[thread] = squares;
  }
  sum_lanes(thread);
  if (thread == 0u) { factor = div(1.0, root(add(div(lanes[0], f32(op.head_dim)), number(eps)))); }
  workgroupBarrier();
  for (var i = thread; i < op.head_dim; i += 64u) { numbers[i] = mul(mul(numbers[i], factor), vector(weight + i)); }
  workgroupBarrier();
}

@compute @workgroup_size(64) fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = at.y;
  let is_query = at.x < op.heads;
  let is_value = at.x >= op.heads + op.kv_heads;
  let dim = select(op.head_dim, op.value_dim, is_value);
  var head = at.x;
  var x = op.q + row * op.q_width;
  if (!is_query) { head -= op.heads; x = op.k + row * op.k_width; }
  if (is_value) { head -= op.kv_heads; x = op.v + row * op.v_width; }
  x += head * dim;
  for (var i = thread; i < dim; i += 64u) { numbers[i] = floats[x + i]; }
  workgroupBarrier();
  if (is_query && op.q_norm != NONE) { normalise(op.q_norm, op.q_eps, thread); }
  if (!is_query && !is_value && op.k_norm != NONE) { normalise(op.k_norm, op.k_eps, thread); }
  if (!is_value) {
    for (var i = thread; i < dim - op.pairs; i += 64u) {
      let two = pair(i, op.pairs, op.rotate_half != 0u);
      let turned = rotate(numbers[two.x], numbers[two.y], row, op.angles, op.pairs, i);
      if (is_query) {
        let to = op.rotated + row * op.rotated_width + head * dim;
        floats[to + two.x] = turned.x;
        if (i < op.pairs) { floats[to + two.y] = turned.y; }
      } else {
        numbers[two.x] = turned.x;
        if (i < op.pairs) { numbers[two.y] = turned.y; }
      }
    }
  }
  workgroupBarrier();
  if (is_query) { return; }
  let position = u32(position_of(row));
  let table = select(batch.tables, batch.window_tables, op.window != 0u) + u32(lists[batch.sequence + row]) * batch.table_width;
  let block = u32(lists[table + position / 32u]) * op.block_bytes;
  let token = position & 31u;
  if (is_value) { store_value(block + op.values + head * values_head(dim).end, token, dim, thread); }
  else { store_key(block + op.keys + head * keys_head(dim).end, token, dim, thread); }
}

// If a head's numbers end within a group of 16, the last is repeated, which changes neither the smallest nor the largest of them.
fn number_at(i: u32, dim: u32) -> f32 { return saturated(numbers[min(i, dim - 1u)]); }

// Returns the scale and the minimum of the 32 numbers from `first` on, as halves; the numbers' codes go to `found`.
fn encode(format: u32, first: u32, dim: u32) -> vec2<u32> {
  let end = min(first + 32u, padded(dim));
  var most = number_at(first, dim);
  var least = most;
  for (var i = first + 1u; i < end; i++) {
    most = max(most, number_at(i, dim));
    least = min(least, number_at(i, dim));
  }
  most = select(most, 0.0, most == 0.0);  // no zero with a sign
  least = select(least, 0.0, least == 0.0);
  var step_size = div(max(most, -least), 127.0);
  var low = -127.0;
  var high = 127.0;
  if (format == Q5_1) { step_size = div(sub(most, least), 31.0); low = 0.0; high = 31.0; }
  if (format == Q4_0) {
    step_size = div(select(least, most, most >= -least), -8.0);
    step_size = select(step_size, 0.0, step_size == 0.0);
    low = -8.0;
    high = 7.0;
  }
  let halves = vec2(float_to_half(step_size), float_to_half(least));
  let scale = half_to_float(halves.x);
  for (var i = first; i < end; i++) {
    var code = 0.0;
    if (scale != 0.0) {
      var x = number_at(i, dim);
      if (format == Q5_1) { x = sub(x, half_to_float(halves.y)); }
      code = round(max(min(div(x, scale), high), low));
    }
    found[i] = bitcast<u32>(i32(code) + select(0, 8, format == Q4_0));
  }
  return halves;
}

fn store_key(head_at: u32, token: u32, dim: u32, thread: u32) {
  if (KEYS == F16) {
    for (var d = thread; d < dim; d += 64u) { put_half(head_at + (d * 32u + token) * 2u, float_to_half(number_at(d, dim))); }
    return;
  }
  let head = keys_head(dim);
  for (var part = thread; part < (padded(dim) + 31u) / 32u; part += 64u) {
    let halves = encode(KEYS, part * 32u, dim);
    if (part < (dim + 31u) / 32u) {
      put_half(head_at + head.scales + (part * 32u + token) * 2u, halves.x);
      if (KEYS == Q5_1) { put_half(head_at + head.minima + (part * 32u + token) * 2u, halves.y); }
    }
  }
  workgroupBarrier();
  if (KEYS == Q8_0) {
    for (var d = thread; d < dim; d += 64u) { put_byte(head_at + d * 32u + token, found[d]); }
    return;
  }
  for (var i = thread; i < padded(dim) / 2u; i += 64u) {
    let d = i / 2u * 4u + i % 2u;
    put_byte(head_at + i * 32u + token, (found[d] & 15u) | ((found[d + 2u] & 15u) << 4u));
  }
  if (KEYS != Q5_1) { return; }
  for (var i = thread; i < padded(dim) / 8u; i += 64u) {
    var bits = 0u;
    for (var j = 0u; j < 8u; j++) { bits |= ((found[i / 2u * 16u + i % 2u + 2u * j] >> 4u) & 1u) << j; }
    put_byte(head_at + head.fifth + i * 32u + token, bits);
  }
}

fn store_value(head_at: u32, token: u32, dim: u32, thread: u32) {
  let size = padded(dim);
  if (VALUES == F16) {
    for (var d = thread; d < size; d += 64u) { put_half(head_at + (token * size + d) * 2u, float_to_half(number_at(d, dim))); }
    return;
  }
  let head = values_head(dim);
  let parts = (size + 31u) / 32u;
  for (var part = thread; part < parts; part += 64u) {
    let halves = encode(VALUES, part * 32u, dim);
    put_half(head_at + head.scales + (token * parts + part) * 2u, halves.x);
    if (VALUES == Q5_1) { put_half(head_at + head.minima + (token * parts + part) * 2u, halves.y); }
  }
  workgroupBarrier();
  if (VALUES == Q8_0) {
    for (var d = thread; d < size; d += 64u) { put_byte(head_at + token * size + d, found[d]); }
    return;
  }
  for (var i = thread; i < size / 2u; i += 64u) {
    let d = i / 8u * 16u + i % 8u;
    put_byte(head_at + token * (size / 2u) + i, (found[d] & 15u) | ((found[d + 8u] & 15u) << 4u));
  }
  if (VALUES != Q5_1) { return; }
  for (var i = thread; i < size / 8u; i += 64u) {
    var bits = 0u;
    for (var j = 0u; j < 8u; j++) { bits |= ((found[8u * i + j] >> 4u) & 1u) << j; }
    put_byte(head_at + head.fifth + token * (size / 8u) + i, bits);
  }
}
