// One operation on `count` triples of numbers, which are in `lists` one kind after the other; the results are words of `quants`.
struct Op { operation: u32, count: u32 }
alias Kept = u32;
fn compute(a: u32, b: u32, c: u32) -> u32 {
  let x = bitcast<f32>(a);
  let y = bitcast<f32>(b);
  let z = bitcast<f32>(c);
  switch (op.operation) {
    case 0u: { return bitcast<u32>(fused(x, y, z)); }
    case 1u: { return bitcast<u32>(hide(x * y) + z); }
    case 2u: { return bitcast<u32>(div(x, y)); }
    case 3u: { return bitcast<u32>(root(x)); }
    case 4u: { return bitcast<u32>(half_to_float(a & 0xffffu)); }
    case 5u: { return float_to_half(x); }
    case 6u: { return bitcast<u32>(round(x)); }
    case 7u: { return bitcast<u32>(dot4I8Packed(a, b)); }
    case 8u: { return bitcast<u32>(add(x, y)); }
    case 9u: { return bitcast<u32>(mul(x, y)); }
    default: { return 0u; }
  }
}
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  if (at.x >= op.count) { return; }
  quants[at.x] = compute(bitcast<u32>(lists[at.x]), bitcast<u32>(lists[op.count + at.x]), bitcast<u32>(lists[2u * op.count + at.x]));
}
