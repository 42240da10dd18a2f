// a · b + c, rounded once, on every device.
fn fused_once(x: f32, y: f32, z: f32) -> f32 { return fused_whole(x, y, z); }
const KEEPS_DENORMALS = true;  // also where the device flushes them elsewhere
