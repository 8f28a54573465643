// Division of numbers below 2^31 by one number that many threads divide by (Granlund and Montgomery, "Division by invariant
// integers using multiplication").
#pragma once

#include <cstdint>

namespace robocache {

struct Division {
  std::uint32_t factor = 0;
  int shift = 0;

  Division() = default;
  explicit Division(std::uint32_t divisor) {
    while (std::uint64_t{1} << shift < divisor) ++shift;
    factor = static_cast<std::uint32_t>((((std::uint64_t{1} << shift) - divisor) << 32) / divisor + 1);
  }
#if defined(__CUDACC__)
  __device__ std::uint32_t divide(std::uint32_t a) const { return (__umulhi(factor, a) + a) >> shift; }
#endif
};

}  // namespace robocache
