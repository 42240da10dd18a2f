// What Linux has and other Unixes have not.
#include <fcntl.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "posix.h"

namespace cutaway::platform {

int processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return (int)std::thread::hardware_concurrency();
}

bool has_dot() { return (getauxval(AT_HWCAP) & (1 << 20)) != 0; }    // HWCAP_ASIMDDP
bool has_i8mm() { return (getauxval(AT_HWCAP2) & (1 << 13)) != 0; }  // HWCAP2_I8MM

bool allow_tiles() {
#if defined(__x86_64__)
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}

void wish_for_large_pages(uint8_t* at, size_t bytes) { madvise(at, bytes, MADV_HUGEPAGE); }
void expect_in_order(int file) { posix_fadvise(file, 0, 0, POSIX_FADV_SEQUENTIAL); }  // twice as far ahead
void expect_bytes(int file, size_t first, size_t end) {
  posix_fadvise(file, (off_t)first, (off_t)(end - first), POSIX_FADV_WILLNEED);
}
timespec time_of_writing(const struct stat& file) { return file.st_mtim; }
void forget(int file, size_t first, size_t end) {
  posix_fadvise(file, (off_t)first, (off_t)(end - first), POSIX_FADV_DONTNEED);
}

}  // namespace cutaway::platform
