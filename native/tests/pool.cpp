// The pool of threads without Python.
#include "../pool.h"

#include <stdio.h>

#include <algorithm>
#include <chrono>
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

}  // namespace cutaway
