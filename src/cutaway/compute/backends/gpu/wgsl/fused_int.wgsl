// a · b + c, rounded once, on every device.
fn fused(x: f32, y: f32, z: f32) -> f32 { return fused_whole(x, y, z); }
