// What both kernels of attention share: an op's numbers, and how softmaxes of chunks are merged into one (arXiv 1805.02867), always in
// the order of the chunks.
struct Op {
  q: u32, q_width: u32, out: u32, out_width: u32,
  heads: u32, kv_heads: u32, head_dim: u32,
  scale: u32, softcap: u32,
  block_bytes: u32, keys: u32, values: u32,  // where in a block these begin
  window: u32,     // whether blocks lie at the places that they have in layers with a window
  back: u32,       // tokens that a row sees up to its own; 0: all
  chunked: u32,    // the text is cut into chunks of this many tokens, and a row sees only its own chunk; 0: it is not cut
  reach: u32,      // how many tokens after its own a row sees; 0: all up to its limit
  causal: u32,     // whether a row sees none after its own
  value_first: u32, value_dim: u32,  // where in a key its value begins, if it is a part of it; how many numbers a value has
  sinks: u32,      // for each head a score without a value; NONE: there are none
  row_sinks: u32, row_sinks_width: u32,  // the same by row
  bias: u32, bias_count: u32,        // for each head what is added by distance, and how many distances; NONE: nothing is added
  of_query: u32, of_query_width: u32, of_key: u32, of_key_width: u32,
  related: u32, related_count: u32, per_head: u32,  // which of a token's numbers, by distance; NONE: the query's, by how far back
  partial: u32,    // results of chunks: for each row, head and chunk a peak, a total and the numbers
  tiles: u32,      // which list of tiles says what rows a workgroup has
  quants: u32, quant_blocks: u32,  // where the result's quant blocks go, and how many a row has; NONE: there are none
}
const NOTHING: f32 = -3.4028234663852886e38;  // the score of what is not seen; no infinities, which a compiler may take for absent

fn partial_of(row: u32, head: u32, chunk: u32) -> u32 {
  return op.partial + ((row * op.heads + head) * batch.chunks + chunk) * (2u + padded(op.value_dim));
}
// The factors by which two softmaxes are multiplied before they are added.
fn factors_of(peak: f32, next: f32) -> vec2<f32> {
  let e = exp_nonpositive(-abs(sub(peak, next)));  // of the lower; the higher's is 1
  return select(vec2(1.0, e), vec2(e, 1.0), next > peak);
}
fn sink_of(row: u32, head: u32) -> f32 {
  if (op.row_sinks != NONE) { return floats[op.row_sinks + row * op.row_sinks_width + head]; }
  return vector(op.sinks + head);
}
// Merges a head's sink, as if it were a last chunk of one token without a value; then divides.
fn finish(row: u32, head: u32, d: u32, peak: f32, total: f32, sum: f32) {
  var whole = total;
  var y = sum;
  if (op.sinks != NONE || op.row_sinks != NONE) {
    let by = factors_of(peak, sink_of(row, head));
    whole = add(mul(total, by.x), by.y);
    y = fused(0.0, by.y, mul(sum, by.x));
  }
  floats[op.out + row * op.out_width + head * op.value_dim + d] = div(y, whole);
}
// Writes the 32 numbers from 32 * block on of a head's result as a quant block.
fn quantise_block(row: u32, head: u32, block: u32) {
  let first = head * op.value_dim + 32u * block;
  for (var i = 0u; i < 32u; i++) { block_of_32[i] = floats[op.out + row * op.out_width + first + i]; }
  quantise(op.quants + (row * op.quant_blocks + first / 32u) * 16u);
}
