// WebAssembly: memory that its host grows, no files; and what is thrown ends in the host. Threads are the host's, too: each
// has this module over the same memory, and calls Pool::work.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <exception>
#include <new>
#include <stdexcept>

#include "../platform.h"
#include "../pool.h"

// Whoever runs the module provides this. It does not return: in JavaScript it throws an Error with this message.
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

// They never end: the host ends them with the module.
struct Pool::Workers {};

namespace {

template <class Word> void sleep_while(std::atomic<Word>& word, Word value) {
  static_assert(sizeof word == 8);
#ifdef __wasm_atomics__
  __builtin_wasm_memory_atomic_wait64((int64_t*)&word, (int64_t)value, -1);
#endif
}
template <class Word> void wake_all(std::atomic<Word>& word) {
#ifdef __wasm_atomics__
  __builtin_wasm_memory_atomic_notify((int32_t*)&word, UINT32_MAX);
#endif
}
// Waits are short within a step; between two the page draws a token and shows it.
template <class Word> void wait_while(std::atomic<Word>& word, Word value) {
  for (int i = 0; i < 20'000; i++)
    if (word.load(std::memory_order_acquire) != value) return;
  while (word.load(std::memory_order_acquire) == value) sleep_while(word, value);
}

}  // namespace

Pool::Pool(int threads) : size_(threads), spins_(0), active_(threads) {}
Pool::~Pool() = default;

void Pool::run(const std::function<void(int)>& job, Work) {
  if (size_ == 1) return job(0);
  job_ = &job;
  epoch_.fetch_add(1, std::memory_order_release);
  wake_all(epoch_);
  job(0);
  barrier();
}

void Pool::work(int id, uint64_t seen) {
  for (;; seen++) {
    wait_while(epoch_, seen);
    (*job_)(id);
    barrier();
  }
}

void Pool::barrier() {
  if (size_ == 1) return;
  const uint64_t now = barrier_.number.load(std::memory_order_acquire);
  if (barrier_.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < size_) return wait_while(barrier_.number, now);
  barrier_.arrived.store(0, std::memory_order_relaxed);
  barrier_.number.fetch_add(1, std::memory_order_release);
  wake_all(barrier_.number);
}

}  // namespace cutaway
