// For tests: computes like hardware that fuses and flushes denormals (D3D12, Metal, many mobile GPUs), in whole numbers between two
// flushes.
fn flush(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  return bitcast<f32>(select(bits, bits & 0x80000000u, (bits & 0x7f800000u) == 0u) ^ zero());
}
fn fused_once(x: f32, y: f32, z: f32) -> f32 { return flush(fused_whole(flush(x), flush(y), flush(z))); }
const KEEPS_DENORMALS = false;  // where the device flushes them elsewhere
