// a · b + c, rounded once, by the device's own fma, where the probe saw that this rounds once.
fn fused_once(a: f32, b: f32, c: f32) -> f32 { return fma(a, b, c); }
const KEEPS_DENORMALS = false;  // where the device flushes them elsewhere
