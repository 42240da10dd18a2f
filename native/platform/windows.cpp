// Memory, files and processors of Windows.
#define NOMINMAX
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <errno.h>
#include <io.h>

#include <algorithm>
#include <bit>
#include <new>
#include <thread>

#include "../platform.h"

namespace cutaway::platform {
namespace {

HANDLE handle_of(int file) { return (HANDLE)_get_osfhandle(file); }

int number_of(DWORD error) { return error == ERROR_DISK_FULL || error == ERROR_HANDLE_DISK_FULL ? ENOSPC : EIO; }

}  // namespace

int processors() {
  DWORD_PTR own_processors, all_processors;
  if (GetProcessAffinityMask(GetCurrentProcess(), &own_processors, &all_processors) && own_processors) return std::popcount((uint64_t)own_processors);
  return (int)std::thread::hardware_concurrency();
}

uint64_t this_process() { return GetCurrentProcessId(); }

bool has_dot() { return IsProcessorFeaturePresent(43); }   // PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE
bool has_i8mm() { return IsProcessorFeaturePresent(66); }  // PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE
bool allow_tiles() { return false; }

// Large pages want a right that users do not have.
uint8_t* allocate(size_t bytes) {
  void* at = VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
  if (!at) throw std::bad_alloc();
  return (uint8_t*)at;
}
void release(uint8_t* at, size_t) { VirtualFree(at, 0, MEM_RELEASE); }

int duplicate(int file) {
  const int copy = _dup(file);
  if (copy >= 0) SetHandleInformation(handle_of(copy), HANDLE_FLAG_INHERIT, 0);
  return copy;
}
void close(int file) { _close(file); }

uint8_t* map(int file, size_t) {
  const HANDLE mapping = CreateFileMappingW(handle_of(file), nullptr, PAGE_READONLY, 0, 0, nullptr);
  if (!mapping) return nullptr;
  void* at = MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, 0);
  CloseHandle(mapping);  // the view keeps it
  return (uint8_t*)at;
}
void unmap(uint8_t* at, size_t) { UnmapViewOfFile(at); }

int write(int file, size_t at, const uint8_t* from, size_t bytes) {
  while (bytes) {
    OVERLAPPED place = {};
    place.Offset = (DWORD)at, place.OffsetHigh = (DWORD)(at >> 32);
    DWORD n = 0;
    if (!WriteFile(handle_of(file), from, (DWORD)std::min<size_t>(bytes, 1 << 30), &n, &place))
      return number_of(GetLastError());
    at += n, from += n, bytes -= n;
  }
  return 0;
}

int read(int file, size_t at, uint8_t* to, size_t bytes) {
  while (bytes) {
    OVERLAPPED place = {};
    place.Offset = (DWORD)at, place.OffsetHigh = (DWORD)(at >> 32);
    DWORD n = 0;
    if (!ReadFile(handle_of(file), to, (DWORD)std::min<size_t>(bytes, 1 << 30), &n, &place))
      return GetLastError() == ERROR_HANDLE_EOF ? -1 : EIO;
    if (n == 0) return -1;
    at += n, to += n, bytes -= n;
  }
  return 0;
}

Stamp stamp(int file) {
  BY_HANDLE_FILE_INFORMATION info;
  if (!GetFileInformationByHandle(handle_of(file), &info)) return {-1, 0};
  const auto number = [](DWORD high, DWORD low) { return (int64_t)((uint64_t)high << 32 | low); };
  return {number(info.nFileSizeHigh, info.nFileSizeLow),
          number(info.ftLastWriteTime.dwHighDateTime, info.ftLastWriteTime.dwLowDateTime)};
}

void expect_bytes(int, size_t, size_t) {}  // read when they are wanted
void expect_no_order(uint8_t*, size_t, size_t) {}
void expect_pages(uint8_t*, size_t, size_t) {}  // read when they are wanted
void drop_pages(int, uint8_t*, size_t, size_t) {}  // the system takes back what it needs

}  // namespace cutaway::platform
