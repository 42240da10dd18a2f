// What both kernels of attention have: an op's numbers, and softmaxes merged into one (arXiv 1805.02867), always in the order of chunks.
struct Op {
  q: u32, q_width: u32, out: u32, out_width: u32,
  heads: u32, kv_heads: u32, head_dim: u32,
  scale: u32, softcap: u32,
  block_bytes: u32, keys: u32, values: u32,  // where in a block these begin
  window: u32,     // whether blocks lie at their places of the layers with a window
  back: u32,       // tokens that a row sees up to its own; 0: all
  chunked: u32,    // no token is seen that is not in the same so-many-th of the text; 0: it is
  reach: u32,      // tokens that it sees after its own; 0: as far as its limit
  value_first: u32, value_dim: u32,  // values are these numbers of the keys; 0: they are not
  sinks: u32,      // of each head a score without a value; NONE
  bias: u32, bias_count: u32,        // of each head what is added by distance, and for how many; NONE
  of_query: u32, of_query_width: u32, of_key: u32, of_key_width: u32,
  related: u32, related_count: u32, per_head: u32,  // which of a token's numbers, by distance; NONE: nothing is added
  partial: u32,    // results of chunks: of each row, head and chunk a peak, a total and numbers
  tiles: u32,      // which list of tiles says the rows of workgroups
  quants: u32, quant_blocks: u32,  // where the result's quant blocks go, and how many a row has; NONE
}
const NOTHING: f32 = -3.4028234663852886e38;  // the score of what is not seen; no infinities, which a compiler may take for absent

fn width_of_value() -> u32 { return select(op.head_dim, op.value_dim, op.value_dim != 0u); }
fn partial_of(row: u32, head: u32, chunk: u32) -> u32 {
  return op.partial + ((row * op.heads + head) * batch.chunks + chunk) * (2u + padded(width_of_value()));
}
// What two softmaxes are multiplied by.
fn factors_of(peak: f32, next: f32) -> vec2<f32> {
  let e = exp_nonpositive(-abs(sub(peak, next)));  // of the lower; the higher's is 1
  return select(vec2(1.0, e), vec2(e, 1.0), next > peak);
}
// A head's sink, as the last chunk of all, of one token without a value; then the division.
fn finish(row: u32, head: u32, d: u32, peak: f32, total: f32, sum: f32) {
  var whole = total;
  var y = sum;
  if (op.sinks != NONE) {
    let by = factors_of(peak, vector(op.sinks + head));
    whole = add(mul(total, by.x), by.y);
    y = fused(0.0, by.y, mul(sum, by.x));
  }
  floats[op.out + row * op.out_width + head * width_of_value() + d] = div(y, whole);
}
// Of a head's result the 32 numbers from 32 * block on, as a quant block.
fn quantise_block(row: u32, head: u32, block: u32) {
  let first = head * width_of_value() + 32u * block;
  for (var i = 0u; i < 32u; i++) { block_of_32[i] = floats[op.out + row * op.out_width + first + i]; }
  quantise(op.quants + (row * op.quant_blocks + first / 32u) * 16u);
}
