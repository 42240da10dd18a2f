#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

namespace cutaway {

Memory::Memory(size_t bytes) : size_((bytes + 4095) / 4096 * 4096) {
  constexpr size_t huge = 2u << 20;
  if (size_ == 0) return;
  // Reserve enough to begin at a large page, then give the ends back.
  void* base = mmap(nullptr, size_ + huge, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  uint8_t* begin = (uint8_t*)base;
  data_ = (uint8_t*)(((uintptr_t)begin + huge - 1) / huge * huge);
  if (data_ > begin) munmap(begin, data_ - begin);
  if (begin + huge > data_) munmap(data_ + size_, begin + huge - data_);
#ifdef MADV_HUGEPAGE
  madvise(data_, size_, MADV_HUGEPAGE);  // a wish: without it all works, slower
#endif
}
Memory::Memory(size_t bytes, int file) : size_(bytes), file_(fcntl(file, F_DUPFD_CLOEXEC, 0)) {
  void* base = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file_, 0);
  if (base == MAP_FAILED) {
    if (is_file()) close(file_);
    throw std::bad_alloc();
  }
  data_ = (uint8_t*)base;
#ifdef POSIX_FADV_SEQUENTIAL
  posix_fadvise(file_, 0, 0, POSIX_FADV_SEQUENTIAL);  // twice as far ahead
#endif
}
Memory::~Memory() {
  if (data_) munmap(data_, size_);
  if (is_file()) close(file_);
}
Memory::Memory(Memory&& other) noexcept { *this = std::move(other); }
Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(file_, other.file_);
  return *this;
}

int Memory::write(size_t at, const uint8_t* from, size_t bytes) const {
  while (bytes) {
    const ssize_t n = pwrite(file_, from, bytes, (off_t)at);
    if (n < 0 && errno != EINTR) return errno;
    if (n > 0) at += n, from += n, bytes -= n;
  }
  return 0;
}

// The system keeps a file in pieces of up to 2 MB and gives back whole ones only: that before the first byte was
// kept when the part before it was let go of.
void Memory::let_go(const uint8_t* first, size_t bytes) const {
  constexpr size_t page = 4096, piece = 2u << 20;
  const size_t at = first - data_, from = (at > piece ? at - piece : 0) / page * page;
  const size_t to = std::min((at + bytes + page - 1) / page * page, size_);
  madvise(data_ + from, to - from, MADV_DONTNEED);  // what is mapped cannot be given back
#ifdef POSIX_FADV_DONTNEED
  posix_fadvise(file_, (off_t)from, (off_t)(to - from), POSIX_FADV_DONTNEED);
#endif
}

}  // namespace cutaway
