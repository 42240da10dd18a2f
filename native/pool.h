// A persistent pool of threads that run one function together, with cheap barriers.
//
// Between jobs a worker spins briefly, then sleeps. At a barrier threads spin, then yield; where there
// are more threads than processors they yield at once. Where much of a job is spent in such waits, other
// programs use our processors: then the pool backs off to half its threads, twice as long each time
// (results must not depend on the number of threads). A forked child starts its own workers.
#pragma once
#include <stdint.h>

#include <atomic>
#include <functional>
#include <memory>

namespace cutaway {

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return active_; }  // threads of the running job, or of the next
  int max_threads() const { return size_; }
  // Uneven work: threads wait for each other however idle the machine is, so the pool learns nothing
  // from it about other programs.
  enum class Work { kEven, kUneven };
  // Run job(0) … job(size - 1) at once and return when all have. The caller is thread 0. What one of them throws ends the
  // others at their next barrier, and is thrown here; the next job runs as if nothing had been.
  void run(const std::function<void(int)>& job, Work work = Work::kEven);
  // Every thread of a running job calls it.
  void barrier();
  // All that thread `id` does, from the job after the `seen`th on. The pool starts its threads itself, but in a browser.
  void work(int id, uint64_t seen);

 private:
  // Where all threads of a job wait for each other.
  struct Meeting {
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<uint64_t> number{0};  // of meetings so far
  };
  static constexpr uint64_t kFailed = 1ull << 63;  // beside the number of those within a job: a thread has thrown

  void start();
  void stop();
  void attempt(int id);
  uint64_t meet(Meeting& meeting);
  void wait_for_job(uint64_t seen);
  void adapt(int64_t job, int64_t late);
  // A job's number and, in one word with it, how many threads it has: a worker that sleeps through
  // jobs it is not part of must not mistake one for another.
  uint64_t next_epoch(int threads) const { return (epoch_.load() / kMostThreads + 1) * kMostThreads + threads; }
  static constexpr int kMostThreads = 1024;

  const int size_;
  const int spins_;
  uint64_t owner_ = 0;
  struct Workers;  // threads, where they sleep while there is no job, and what one of them threw
  std::unique_ptr<Workers> workers_;
  const std::function<void(int)>* job_ = nullptr;
  bool stopping_ = false;
  int active_;
  static constexpr int64_t kShortestBackoff = 20'000'000, kLongestBackoff = 1'000'000'000;  // nanoseconds
  int64_t retry_at_ = 0;             // when more threads are tried again
  int64_t backoff_ = kShortestBackoff;  // how long the next one lasts
  alignas(64) std::atomic<uint64_t> epoch_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  alignas(64) std::atomic<int64_t> late_{0};  // nanoseconds of this job waited for after spinning
  Meeting barrier_;              // within a job
  Meeting end_;                  // of a job, to which those come, too, that have thrown
};

}  // namespace cutaway
