#include "memory.h"

#include <algorithm>
#include <new>
#include <utility>

#include "platform.h"

#ifdef __SANITIZE_ADDRESS__  // the rest of the last page is nobody's
#include <sanitizer/asan_interface.h>
#define FORBID_REST(at, bytes) ASAN_POISON_MEMORY_REGION((at) + (bytes), -(bytes) % 4096)
#define ALLOW_REST(at, bytes) ASAN_UNPOISON_MEMORY_REGION((at) + (bytes), -(bytes) % 4096)
#else
#define FORBID_REST(at, bytes) (void)0
#define ALLOW_REST(at, bytes) (void)0
#endif

namespace cutaway {

namespace {
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kWhole = 8;  // what a sanitizer tells apart
#else
constexpr size_t kWhole = 4096;
#endif
}  // namespace

Memory::Memory(size_t bytes) : size_((bytes + kWhole - 1) / kWhole * kWhole) {
  if (!size_) return;
  data_ = platform::allocate(size_);
  FORBID_REST(data_, size_);
}
Memory::Memory(size_t bytes, int file) : size_(bytes), file_(platform::duplicate(file)) {
  data_ = platform::map(file_, size_);
  if (data_) return;
  if (is_file()) platform::close(file_);
  throw std::bad_alloc();
}
Memory::~Memory() {
  if (is_file()) platform::unmap(data_, size_), platform::close(file_);
  else if (data_) {
    ALLOW_REST(data_, size_);
    platform::release(data_, size_);
  }
}
Memory::Memory(Memory&& other) noexcept { *this = std::move(other); }
Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(file_, other.file_);
  return *this;
}

int Memory::write(size_t at, const uint8_t* from, size_t bytes) const {
  return platform::write(file_, at, from, bytes);
}

// The system keeps a file in pieces of up to 2 MB and gives back whole ones only: that before the first byte was
// kept when the part before it was dropped.
void Memory::drop_pages(const uint8_t* first, size_t bytes) const {
  constexpr size_t piece = 2u << 20;
  const size_t at = first - data_;
  platform::drop_pages(file_, data_, at > piece ? at - piece : 0, std::min(at + bytes, size_));
}
// Pages that others' bytes are in, too, stay: they may be read soon.
void Memory::drop_exactly(const uint8_t* first, size_t bytes) const {
  constexpr size_t page = 64 << 10;  // the largest of any system
  const size_t at = (first - data_ + page - 1) / page * page, end = (first - data_ + bytes) / page * page;
  if (is_file() && at < end) platform::drop_pages(file_, data_, at, end);
}
void Memory::expect_no_order(const uint8_t* first, size_t bytes) const {
  if (is_file()) platform::expect_no_order(data_, first - data_, std::min<size_t>(first - data_ + bytes, size_));
}
void Memory::expect_pages(const uint8_t* first, size_t bytes) const {
  if (is_file()) platform::expect_pages(data_, first - data_, std::min<size_t>(first - data_ + bytes, size_));
}

}  // namespace cutaway
