// WebAssembly: memory that its host grows, one thread, no files; and what is thrown ends in the host.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <exception>
#include <new>
#include <stdexcept>

#include "../platform.h"
#include "../pool.h"

// To be given by who runs the module: does not return (in JavaScript it throws an Error with this message).
extern "C" __attribute__((import_module("cutaway"), import_name("refuse"))) [[noreturn]] void cutaway_refuse(const char* message, size_t bytes);

// There is no catch in what is compiled to WebAssembly, so that throwing is to leave it.
extern "C" {
void* __cxa_allocate_exception(size_t bytes) noexcept { return malloc(bytes); }
void __cxa_free_exception(void* exception) noexcept { free(exception); }
[[noreturn]] void __cxa_throw(void* exception, std::type_info*, void (*)(void*)) {
  const char* message = ((const std::exception*)exception)->what();
  cutaway_refuse(message, strlen(message));
}
// The one thread ends with the module: what it would destroy then is gone with its memory.
int __cxa_thread_atexit(void (*)(void*), void*, void*) { return 0; }
}

namespace cutaway {

namespace platform {

int processors() { return 1; }
uint64_t this_process() { return 1; }

uint8_t* allocate(size_t bytes) {
  void* at = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (!at) throw std::bad_alloc();
  return (uint8_t*)memset(at, 0, bytes);
}
void release(uint8_t* at, size_t) { free(at); }

int duplicate(int) { return -1; }
void close(int) {}
uint8_t* map(int, size_t) { return nullptr; }
void unmap(uint8_t*, size_t) {}
int write(int, size_t, const uint8_t*, size_t) { return EBADF; }
void expect_no_order(uint8_t*, size_t, size_t) {}
void expect_pages(uint8_t*, size_t, size_t) {}
void drop_pages(int, uint8_t*, size_t, size_t) {}

}  // namespace platform

struct Pool::Workers {};

Pool::Pool(int threads) : size_(threads), spins_(0), active_(threads) {
  if (threads != 1) throw std::invalid_argument("WebAssembly has one thread here");
}
Pool::~Pool() = default;
void Pool::run(const std::function<void(int)>& job, Work) { job(0); }
void Pool::barrier() {}

}  // namespace cutaway
