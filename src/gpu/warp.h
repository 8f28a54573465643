// Warps: their size, the mask of all lanes, a prefix sum. For nvcc only.
#pragma once

namespace robocache {

inline constexpr int warp_size = 32;
inline constexpr unsigned whole_warp = 0xffffffffu;  // the mask of all lanes

// The sum of x over this lane and all lanes below it. All lanes of the warp must call it.
__device__ inline int warp_inclusive_sum(int x) {
  constexpr int lanes = 32;
  const auto lane = static_cast<int>(threadIdx.x % lanes);
#pragma unroll
  for (int step = 1; step < lanes; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, x, step);
    if (lane >= step) x += other;
  }
  return x;
}

}  // namespace robocache
