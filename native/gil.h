// The GIL, released for a while.
#pragma once
#include <Python.h>

#include <chrono>
#include <thread>

namespace cutaway {

// nanobind's own, but for a thread that is still at work while Python shuts down: before 3.14
// Python ends such a thread where it asks for the GIL, on Linux by unwinding its stack, which C++
// takes for an exception nobody caught. Here the thread waits for the end of the process.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  // Not noexcept, or nothing of it would be unwound.
  ~WithoutGil() noexcept(false) {
    WaitWhereUnwound wait;
    PyEval_RestoreThread(state_);
    wait.unwound = false;
  }
  WithoutGil(const WithoutGil&) = delete;

 private:
  struct WaitWhereUnwound {
    bool unwound = true;
    ~WaitWhereUnwound() {
      while (unwound) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  };
  PyThreadState* const state_;
};

}  // namespace cutaway
