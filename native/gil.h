// Runs code without the GIL.
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
  // The destructor is not noexcept, since Python's unwinding must pass through it.
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

// The result of f(), which is called without the GIL.
template <class F> auto without_gil(F f) {
  const WithoutGil released;
  return f();
}

}  // namespace cutaway
