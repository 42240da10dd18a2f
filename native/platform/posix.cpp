// Memory and files where the system is a Unix.
#include "posix.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>

namespace cutaway::platform {
namespace {

size_t page() {  // 4, 16 or 64 KB
  static const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
  return bytes;
}
size_t whole_pages(size_t bytes) { return (bytes + page() - 1) / page() * page(); }

}  // namespace

uint64_t this_process() { return (uint64_t)getpid(); }

uint8_t* allocate(size_t bytes) {
  constexpr size_t large = 2u << 20;
  const size_t size = whole_pages(bytes);
  // Reserve enough to begin at a large page, then give the ends back.
  void* base = mmap(nullptr, size + large, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  uint8_t* begin = (uint8_t*)base;
  uint8_t* at = (uint8_t*)(((uintptr_t)begin + large - 1) / large * large);
  if (at > begin) munmap(begin, at - begin);
  if (begin + large > at) munmap(at + size, begin + large - at);
  wish_for_large_pages(at, size);
  return at;
}
void release(uint8_t* at, size_t bytes) { munmap(at, whole_pages(bytes)); }

int duplicate(int file) { return fcntl(file, F_DUPFD_CLOEXEC, 0); }
void close(int file) { ::close(file); }

uint8_t* map(int file, size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  if (base == MAP_FAILED) return nullptr;
  expect_in_order(file);
  return (uint8_t*)base;
}
void unmap(uint8_t* at, size_t bytes) { munmap(at, bytes); }

int write(int file, size_t at, const uint8_t* from, size_t bytes) {
  while (bytes) {
    const ssize_t n = pwrite(file, from, bytes, (off_t)at);
    if (n < 0 && errno != EINTR) return errno;
    if (n > 0) at += n, from += n, bytes -= n;
  }
  return 0;
}

int read(int file, size_t at, uint8_t* to, size_t bytes) {
  while (bytes) {
    const ssize_t n = pread(file, to, std::min<size_t>(bytes, 1 << 30), (off_t)at);
    if (n == 0) return -1;
    if (n < 0 && errno != EINTR) return errno;
    if (n > 0) at += n, to += n, bytes -= n;
  }
  return 0;
}

Stamp stamp(int file) {
  struct stat status;
  if (fstat(file, &status) != 0) return {-1, 0};
  const timespec time = time_of_writing(status);
  return {(int64_t)status.st_size, (int64_t)time.tv_sec * 1'000'000'000 + time.tv_nsec};
}

void expect_no_order(uint8_t* mapped, size_t first, size_t end) {
  const size_t from = first / page() * page();
  madvise(mapped + from, end - from, MADV_RANDOM);
}
void expect_pages(uint8_t* mapped, size_t first, size_t end) {
  constexpr size_t piece = 128 << 10;  // a system may read no more of what it is asked for at once
  for (size_t at = first / page() * page(); at < end; at += piece)
    madvise(mapped + at, std::min(piece, end - at), MADV_WILLNEED);
}
void drop_pages(int file, uint8_t* mapped, size_t first, size_t end) {
  const size_t from = first / page() * page(), to = whole_pages(end);
  madvise(mapped + from, to - from, MADV_DONTNEED);  // what is mapped cannot be given back
  forget(file, from, to);
}

}  // namespace cutaway::platform
