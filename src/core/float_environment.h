// The floating-point environment that equal bits need: round to nearest even, denormals kept. A caller's thread may have
// another one (torch.set_flush_denormal, a plugin built with -ffast-math), and a new thread inherits its creator's.
#pragma once

#include "core/arithmetic.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif

namespace robocache {
inline namespace ROBOCACHE_SIMD_TARGET {

// In force while it lives. The caller's exception flags come back as they were, too.
class FloatEnvironment {
 public:
  FloatEnvironment() {
#if defined(__x86_64__)
    before_ = _mm_getcsr();
    _mm_setcsr(0x1f80);  // the default of the ABI: all exceptions masked, nearest, neither FTZ nor DAZ
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
#else
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
#endif
    asm volatile("" ::: "memory");  // nothing that is computed from memory moves above the change
  }

  ~FloatEnvironment() {
    asm volatile("" ::: "memory");
#if defined(__x86_64__)
    _mm_setcsr(before_);
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" : : "r"(before_));
#else
    std::fesetenv(&before_);
#endif
  }

  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  unsigned before_;
#elif defined(__aarch64__)
  std::uint64_t before_;
#else
  std::fenv_t before_;
#endif
};

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache
