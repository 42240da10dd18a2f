// What macOS has and other Unixes have not. It reads ahead and chooses its pages by itself.
#include <fcntl.h>
#include <sys/sysctl.h>

#include <algorithm>
#include <thread>

#include "posix.h"

namespace cutaway::platform {
namespace {

bool has(const char* feature) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value;
}

}  // namespace

int processors() { return (int)std::thread::hardware_concurrency(); }

bool has_dot() { return has("hw.optional.arm.FEAT_DotProd"); }
bool has_i8mm() { return has("hw.optional.arm.FEAT_I8MM"); }

bool allow_tiles() { return false; }

void wish_for_large_pages(uint8_t*, size_t) {}
void expect_in_order(int) {}
void expect_bytes(int file, size_t first, size_t end) {
  radvisory wish = {(off_t)first, (int)std::min<size_t>(end - first, 1 << 30)};
  fcntl(file, F_RDADVISE, &wish);
}
timespec time_of_writing(const struct stat& file) { return file.st_mtimespec; }
void forget(int, size_t, size_t) {}

}  // namespace cutaway::platform
