// A persistent pool of threads that run one function together, with cheap barriers.
//
// Between jobs a worker spins briefly, then sleeps. At a barrier threads spin, then yield; where there
// are more threads than processors they yield at once. A forked child starts its own workers.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace cutaway {

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return size_; }
  // Run job(0) … job(size - 1) at once and return when all have. The caller is thread 0.
  void run(const std::function<void(int)>& job);
  // To be called by every thread of a running job.
  void barrier();

 private:
  void start();
  void stop();
  void work(int id, unsigned long seen);
  void wait_for_job(unsigned long seen);

  const int size_;
  const int spins_;
  pid_t owner_ = 0;
  std::vector<std::thread> workers_;
  const std::function<void(int)>* job_ = nullptr;
  bool stopping_ = false;
  struct Bed { std::mutex mutex; std::condition_variable wake; };  // where idle workers sleep
  std::unique_ptr<Bed> bed_ = std::make_unique<Bed>();
  alignas(64) std::atomic<unsigned long> epoch_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned long> generation_{0};
};

}  // namespace cutaway
