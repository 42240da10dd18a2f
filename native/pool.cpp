#include "pool.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "plain_arithmetic.h"
#include "platform.h"

namespace cutaway {
namespace {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t nanoseconds() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

// Thrown at a barrier that will never be complete.
struct Abandoned {};

struct Pool::Workers {
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::condition_variable wake;
  std::exception_ptr failure;  // the first of a job
};

// 2000 pauses last some 50 microseconds.
Pool::Pool(int threads)
    : size_(threads), spins_(threads > platform::processors() ? 0 : 2000), workers_(std::make_unique<Workers>()),
      active_(threads) {
  if (threads < 1 || threads >= kMostThreads)
    throw std::invalid_argument("threads must be between 1 and " + std::to_string(kMostThreads - 1));
}

Pool::~Pool() { stop(); }

void Pool::start() {
  owner_ = platform::this_process();
  stopping_ = false;
  barrier_.arrived = end_.arrived = 0;
  try {
    for (int id = 1; id < size_; id++) workers_->threads.emplace_back(&Pool::work, this, id, epoch_.load());
  } catch (...) {  // the system has no more threads: with some missing, a barrier would wait forever
    stop();
    owner_ = 0;
    throw;
  }
}

void Pool::stop() {
  if (workers_->threads.empty()) return;
  if (owner_ != platform::this_process()) {
    // Forked: the threads stayed in the parent. Their handles must be neither joined nor destroyed,
    // and neither may what they slept on: it waits for them to leave, which they never will.
    auto fresh = std::make_unique<Workers>();
    (void)workers_.release();
    workers_ = std::move(fresh);
    return;
  }
  {
    std::lock_guard<std::mutex> lock(workers_->mutex);
    stopping_ = true;
    epoch_.store(next_epoch(0), std::memory_order_release);
  }
  workers_->wake.notify_all();
  for (auto& thread : workers_->threads) thread.join();
  workers_->threads.clear();
}

void Pool::run(const std::function<void(int)>& job, Work work) {
  if (active_ == 1) {
    job(0);
    if (work == Work::kEven) adapt(0, 0);
    return;
  }
  if (owner_ != platform::this_process()) {
    stop();
    sleepers_ = 0;
    start();
  }
  job_ = &job;
  const int64_t start = nanoseconds();
  late_.store(0, std::memory_order_relaxed);
  // An exchange, not a store: qemu lets the load that follows overtake an ARM store-release, and
  // the job is then missed by a thread that falls asleep just now.
  epoch_.exchange(next_epoch(active_), std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst)) {
    std::lock_guard<std::mutex> lock(workers_->mutex);
    workers_->wake.notify_all();
  }
  attempt(0);
  meet(end_);  // all are done, and none still reads job_
  if (workers_->failure) {
    barrier_.arrived.store(0, std::memory_order_relaxed);  // some may have waited there
    barrier_.number.fetch_and(~kFailed, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(workers_->failure, nullptr));
  }
  if (work == Work::kEven) adapt(nanoseconds() - start, late_.load(std::memory_order_relaxed));
}

// Called after a job, never within one: what prepares the next relies on size().
//
// Where another program shares a processor, its thread comes late by half of a job, and half the
// threads alone would take as long. Below that, backing off costs more than it saves.
void Pool::adapt(int64_t job, int64_t late) {
  const int64_t now = nanoseconds();
  if (active_ > 1 && spins_ > 0 && late / (active_ - 1) > job / 2) {
    active_ /= 2;
    retry_at_ = now + backoff_;
    backoff_ = std::min(2 * backoff_, kLongestBackoff);
  } else if (active_ == size_) {
    backoff_ = kShortestBackoff;
  } else if (now >= retry_at_) {
    active_ = std::min(size_, 2 * active_);
  }
}

void Pool::work(int id, uint64_t seen) {
  make_arithmetic_plain();  // a new thread inherits its maker's rounding
  for (;;) {
    wait_for_job(seen);
    seen = epoch_.load(std::memory_order_acquire);
    if (stopping_) return;
    if (id >= (int)(seen % kMostThreads)) continue;  // not in this job
    attempt(id);
    meet(end_);
  }
}

void Pool::attempt(int id) {
  try {
    (*job_)(id);
  } catch (const Abandoned&) {
  } catch (...) {
    if (!(barrier_.number.fetch_or(kFailed, std::memory_order_acq_rel) & kFailed)) workers_->failure = std::current_exception();
  }
}

void Pool::wait_for_job(uint64_t seen) {
  for (int i = 0; i < 4 * spins_; i++) {
    if (epoch_.load(std::memory_order_acquire) != seen) return;
    relax();
  }
  std::unique_lock<std::mutex> lock(workers_->mutex);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  workers_->wake.wait(lock, [&] { return epoch_.load(std::memory_order_seq_cst) != seen; });
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void Pool::barrier() {
  if (active_ > 1 && meet(barrier_) & kFailed) throw Abandoned();
}

// The meeting's number once all have come, or one of them has failed.
uint64_t Pool::meet(Meeting& meeting) {
  const uint64_t now = meeting.number.load(std::memory_order_acquire);
  const int threads = active_;  // once all have come it may change
  if (now & kFailed) return now;
  if (meeting.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
    meeting.arrived.store(0, std::memory_order_relaxed);
    return meeting.number.fetch_add(1, std::memory_order_acq_rel) + 1;
  }
  uint64_t seen;
  for (int i = 0; i < spins_; i++) {
    if ((seen = meeting.number.load(std::memory_order_acquire)) != now) return seen;
    relax();
  }
  const int64_t start = nanoseconds();
  while ((seen = meeting.number.load(std::memory_order_acquire)) == now) std::this_thread::yield();
  late_.fetch_add(nanoseconds() - start, std::memory_order_relaxed);
  return seen;
}

}  // namespace cutaway
