// Named barriers: the 16 hardware barriers of a block, by which some of its warps wait for each other. For nvcc only.
#pragma once

#include "gpu/warp.h"

namespace robocache {

inline constexpr int hardware_barriers = 16;  // __syncthreads() is number 0

// Waits until `warps` warps have arrived, this one included.
__device__ __forceinline__ void named_barrier_sync(int barrier, int warps) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(warps * warp_size) : "memory");
}
// Arrives without waiting.
__device__ __forceinline__ void named_barrier_arrive(int barrier, int warps) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(warps * warp_size) : "memory");
}

}  // namespace robocache
