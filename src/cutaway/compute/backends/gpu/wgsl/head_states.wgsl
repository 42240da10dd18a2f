// Ops whose state has a matrix (KEYS, values) for each head, which one token after the other changes. A thread has a column of such a
// matrix, of one sequence.
struct Op {
  x: u32, x_width: u32,          // delta net: queries, keys, values; Mamba 2: values, keys, queries; Mamba 1: values
  a: u32, a_width: u32, b: u32, b_width: u32, out: u32, out_width: u32,
  q: u32, q_width: u32,          // Mamba 1: queries; its keys are b
  k_heads: u32, heads: u32, values: u32,
  grouped: u32,                  // whether neighbours among the value heads share a key head
  keep_weight: u32, step_weight: u32, skip_weight: u32,
  learn_factor: u32,             // delta net: the factor of what a token changes
  gates: u32,                    // for each row: of each head, how much its state keeps (KEEPS factors: 1, or one for each key); then
                                 // of each head, how much it learns
  units: u32,                    // delta net: for each row, queries and keys that were scaled to length 1
  state: u32, state_size: u32,   // where in a state this layer's floats begin; floats of a state
}
alias Kept = f32;
