// The pool of threads without Python.
#include "../pool.h"

#include <stdio.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <vector>

#include "checks.h"

namespace cutaway {

// Jobs in quick succession and after pauses in which the workers fall asleep. The pool may back off to
// fewer threads on a busy machine, never within a job: each job must reach every thread that it has.
int check_pool(int threads) {
  Pool pool(threads);
  std::vector<int> seen(threads);
  int missed = 0;
  for (int job = 1; job <= 300; job++) {
    pool.run([&](int id) {
      seen[id] = job;
      pool.barrier();
      if (id == 0) missed += std::count(seen.begin(), seen.begin() + pool.size(), job) != pool.size();
    });
    if (job % 100 == 99) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (missed) printf("pool of %d: %d of 300 jobs did not reach all their threads\n", threads, missed);
  return missed != 0;
}

// One thread throws before, between or after two barriers: the job ends with what it threw, and the next is whole.
int check_failed_jobs(int threads) {
  Pool pool(threads);
  int wrong = 0;
  for (int job = 0; job < 600; job++) {
    const int thrower = job % (threads + 1), place = job / 7 % 3;  // one more than there are: nobody throws
    std::atomic<int> whole{0};
    bool thrown = false;
    const int size = pool.size();
    const bool expected = thrower < size;
    try {
      pool.run([&](int id) {
        for (int at = 0; at < 3; at++) {
          if (id == thrower && at == place) throw std::bad_alloc();
          if (at < 2) pool.barrier();
        }
        whole++;
      });
      wrong += whole != size;
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    wrong += thrown != expected;
  }
  if (wrong) printf("pool of %d: %d of 600 jobs that failed or did not were taken for the other\n", threads, wrong);
  return wrong != 0;
}

}  // namespace cutaway
