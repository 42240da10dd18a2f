// Restores IEEE 754's default rounding and subnormals for a scope.
#pragma once
#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <fenv.h>
#endif

namespace cutaway {

#if defined(__x86_64__)  // fenv.h of Windows does not set the treatment of subnormals
using Arithmetic = unsigned;
inline Arithmetic arithmetic() { return _mm_getcsr(); }
inline void set_arithmetic(const Arithmetic& to) { _mm_setcsr(to); }
inline void make_arithmetic_plain() { _mm_setcsr(0x1f80); }
#else
using Arithmetic = fenv_t;
inline Arithmetic arithmetic() {
  fenv_t now;
  fegetenv(&now);
  return now;
}
inline void set_arithmetic(const Arithmetic& to) { fesetenv(&to); }
inline void make_arithmetic_plain() { fesetenv(FE_DFL_ENV); }
#endif

// Whatever some library did to the rounding or the subnormals of the calling thread (fesetround,
// -ffast-math at its start) must change no bit.
class PlainArithmetic {
 public:
  PlainArithmetic() { make_arithmetic_plain(); }
  ~PlainArithmetic() { set_arithmetic(before_); }
  PlainArithmetic(const PlainArithmetic&) = delete;

 private:
  const Arithmetic before_ = arithmetic();
};

// The same for a block of Python.
class PlainBlock {
 public:
  void enter() { before_ = arithmetic(), make_arithmetic_plain(); }
  void exit() const { set_arithmetic(before_); }

 private:
  Arithmetic before_ = arithmetic();
};

}  // namespace cutaway
