// a · b + c, rounded once, with numbers of 64 bits.
//
// The product is exact. Its sum with c is rounded to 53 bits and then to 24. This is wrong only if the first rounding gave the middle
// between two floats; then the part that the first rounding lost decides.
fn fused_once(a: f32, b: f32, c: f32) -> f32 {
  let product = f64(a) * f64(b);
  let z = f64(c);
  let sum = product + z;
  let near = f32(sum);
  let apart = sum - f64(near);
  if (apart == 0.0lf) { return near; }
  let opposite = f64(near) + (apart + apart);
  let other = f32(opposite);
  if (f64(other) != opposite) { return near; }
  let unknown = f64(hide(0.0));  // without it compilers see that (product + z) - product is z
  let of_c = ((sum + unknown) - product) + unknown;
  let of_product = ((sum + unknown) - of_c) + unknown;
  let lost = (product - of_product) + (z - of_c);
  if (lost > 0.0lf) { return max(near, other); }
  if (lost < 0.0lf) { return min(near, other); }
  return near;
}
const KEEPS_DENORMALS = false;  // where the device flushes them elsewhere
