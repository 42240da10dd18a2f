// Keys and values in KV blocks, as native/kv_format.h lays them out. The constants KEYS and VALUES above all files are their formats.
const F16 = 0u;
const Q8_0 = 1u;
const Q5_1 = 2u;
const Q4_0 = 3u;

fn padded(size: u32) -> u32 { return (size + 15u) / 16u * 16u; }
fn is_packed(format: u32) -> bool { return format >= Q5_1; }
// The bytes at which fifth bits, scales, minima and the end are in a head's part of a block, where a token has `size` numbers.
struct Head { fifth: u32, scales: u32, minima: u32, end: u32 }
fn head_of(format: u32, size: u32) -> Head {
  let numbers = size * 32u;
  let halves = (size + 31u) / 32u * 64u;
  if (format == F16) { return Head(numbers * 2u, numbers * 2u, numbers * 2u, numbers * 2u); }
  let codes = select(numbers, numbers / 2u, is_packed(format));
  let scales = codes + select(0u, numbers / 8u, format == Q5_1);
  return Head(codes, scales, scales + halves, scales + halves * select(1u, 2u, format == Q5_1));
}
fn key_size(head_dim: u32) -> u32 { return select(head_dim, padded(head_dim), is_packed(KEYS)); }
fn keys_head(head_dim: u32) -> Head { return head_of(KEYS, key_size(head_dim)); }
fn values_head(head_dim: u32) -> Head { return head_of(VALUES, padded(head_dim)); }
