// Arithmetic as IEEE 754 begins, for a while.
#pragma once
#include <fenv.h>

namespace cutaway {

// Whatever some library did to the rounding or the subnormals of the calling thread (fesetround,
// -ffast-math at its start) must change no bit.
class PlainArithmetic {
 public:
  PlainArithmetic() { fegetenv(&before_), fesetenv(FE_DFL_ENV); }
  ~PlainArithmetic() { fesetenv(&before_); }
  PlainArithmetic(const PlainArithmetic&) = delete;

 private:
  fenv_t before_;
};

}  // namespace cutaway
