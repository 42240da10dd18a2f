// All that is asked of the operating system, in one file a system: platform/linux.cpp, macos.cpp, windows.cpp
// (and posix.cpp, what the first two share). Does not know what memory, files and processors are used for.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace cutaway::platform {

int processors();        // that this process may use
uint64_t this_process();  // another number in a forked child

// Whether an ARM processor has dot products of bytes, or products of matrices of bytes. Not called elsewhere.
bool has_dot();
bool has_i8mm();

// Whether the system lets this process, and those it forks, use an x86 processor's matrix units. Ask before threads
// start: each one's state grows by 8 kB.
bool allow_tiles();

// Zeroed memory, in pages of 2 MB where the system has them. Throws std::bad_alloc.
uint8_t* allocate(size_t bytes);
void release(uint8_t* at, size_t bytes);

// Files are numbers, as Python has them.
struct Stamp {  // other numbers once a file was written to; a size below 0 where it cannot be told
  int64_t size, changed;
  bool operator==(const Stamp&) const = default;
};
Stamp stamp(int file);
int duplicate(int file);  // one that no other program inherits; negative where there can be none
void close(int file);
// Maps a file to be read; nullptr where it cannot be.
uint8_t* map(int file, size_t bytes);
void unmap(uint8_t* at, size_t bytes);
int write(int file, size_t at, const uint8_t* from, size_t bytes);  // 0, or the number of the error
int read(int file, size_t at, uint8_t* to, size_t bytes);           // likewise; below 0 where the file ends before
void expect_bytes(int file, size_t first, size_t end);              // which will soon be read: begin, and do not wait
// The bytes from `first` to `end` of a mapped file are not read in order: whoever reads one wants none beside it.
void expect_no_order(uint8_t* mapped, size_t first, size_t end);
// The bytes from `first` to `end` of a mapped file will soon be read: begin, and do not wait.
void expect_pages(uint8_t* mapped, size_t first, size_t end);
// They need no memory any more.
void drop_pages(int file, uint8_t* mapped, size_t first, size_t end);

}  // namespace cutaway::platform
