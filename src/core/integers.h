// Small arrays of integers that come with a call (lengths, offsets, rows, into), and what is done with their elements.
#pragma once

#include "core/arithmetic.h"

namespace robocache {

// data is nullptr where the argument is absent.
struct Integers {
  const void* data = nullptr;
  std::int64_t stride = 0;
  bool wide = true;  // int64, else int32
};

// 0 where b is.
constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return b == 0 ? 0 : (a + b - 1) / b; }

inline namespace ROBOCACHE_SIMD_TARGET {

ROBOCACHE_HD std::int64_t integer(const Integers& integers, std::int64_t k) {
  const std::int64_t offset = k * integers.stride;
  return integers.wide ? static_cast<const std::int64_t*>(integers.data)[offset]
                       : static_cast<const std::int32_t*>(integers.data)[offset];
}

ROBOCACHE_HD std::int64_t clamp_to(std::int64_t x, std::int64_t low, std::int64_t high) {
  return x < low ? low : (x > high ? high : x);
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache
