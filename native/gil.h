// The GIL, released for a while.
#pragma once
#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace cutaway {

// nanobind's own, but for a thread that is still at work while Python shuts down: before 3.14
// Python ends such a thread where it asks for the GIL, by unwinding its stack, and C++ takes that
// for an exception nobody caught and aborts. Here the thread waits for the end of the process.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {
      for (;;) pause();
    }
  }
  WithoutGil(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

}  // namespace cutaway
