// Rotary positions: rotates the pairs of a head's numbers by the cosines and sines that the host computed for the step's rows.

// The two numbers that are pair i; from i = `pairs` on, the same number twice, which is not rotated.
fn pair(i: u32, pairs: u32, rotate_half: bool) -> vec2<u32> {
  if (i >= pairs) { return vec2(pairs + i); }
  return select(vec2(2u * i, 2u * i + 1u), vec2(i, i + pairs), rotate_half);
}
fn rotate(x: f32, y: f32, row: u32, before: u32, pairs: u32, i: u32) -> vec2<f32> {
  if (i >= pairs) { return vec2(x, y); }
  let at = batch.angles + before * batch.rows + row * 2u * pairs + 2u * i;
  let cosine = bitcast<f32>(lists[at]);
  let sine = bitcast<f32>(lists[at + 1u]);
  return vec2(sub(mul(x, cosine), mul(y, sine)), add(mul(x, sine), mul(y, cosine)));
}
