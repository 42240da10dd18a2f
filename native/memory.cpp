#include "memory.h"

#include <sys/mman.h>

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
Memory::~Memory() {
  if (data_) munmap(data_, size_);
}
Memory::Memory(Memory&& other) noexcept { *this = std::move(other); }
Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace cutaway
