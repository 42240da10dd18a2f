// What one Unix offers more than another, or calls otherwise; where it does not, nothing happens.
#pragma once
#include <sys/stat.h>
#include <time.h>

#include "../platform.h"

namespace cutaway::platform {

void wish_for_large_pages(uint8_t* at, size_t bytes);
void expect_in_order(int file);  // a file will be read from its beginning to its end
void forget(int file, size_t first, size_t end);  // a part of a file need not be kept in memory
timespec time_of_writing(const struct stat& file);

}  // namespace cutaway::platform
