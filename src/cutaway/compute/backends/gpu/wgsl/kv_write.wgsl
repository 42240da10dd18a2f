// Puts bytes and halves of keys and values where they belong; a word may also have those of other rows.
alias Kept = atomic<u32>;
fn put_bits(at: u32, width: u32, bits: u32) {  // at: a byte; width: of the bits
  let shift = 8u * (at & 3u);
  let mask = ((1u << width) - 1u) << shift;
  atomicAnd(&kept[at >> 2u], ~mask);
  atomicOr(&kept[at >> 2u], bits << shift);
}
fn put_byte(at: u32, byte: u32) { put_bits(at, 8u, byte & 0xffu); }
fn put_half(at: u32, half: u32) { put_bits(at, 16u, half); }
