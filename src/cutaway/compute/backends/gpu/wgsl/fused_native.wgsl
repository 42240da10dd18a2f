// a · b + c, rounded once, where the probe saw that the device's own fma is.
fn fused_once(a: f32, b: f32, c: f32) -> f32 { return fma(a, b, c); }
const KEEPS_DENORMALS = false;  // where the device flushes them elsewhere
