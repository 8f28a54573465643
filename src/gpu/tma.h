// TMA (the Tensor Memory Accelerator): one thread starts a copy of a tile, and an mbarrier counts the bytes that arrive.
// Hopper and later; on older GPUs the device functions do nothing. For nvcc only.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "gpu/mbarrier.h"
#include "gpu/warp.h"

namespace robocache {

// Elects one thread of the warp, in a way that tells the compiler that it is a single one.
__device__ __forceinline__ bool elect_one() {
  if constexpr (has_sm90) {
    std::uint32_t elected;
    asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(elected));
    return elected != 0;
  }
  return threadIdx.x % warp_size == 0;
}

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap& map) {
  if constexpr (has_sm90) asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Starts the copy of a box of a 5-dimensional array to shared memory. c0 to c4: where the box begins. What lies outside the
// array becomes zeros, and is counted by the mbarrier too.
__device__ __forceinline__ void tma_load_5d(std::uint32_t to, const CUtensorMap& map, int c0, int c1, int c2, int c3,
                                            int c4, const Mbarrier& mbarrier) {
  if constexpr (has_sm90) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, "
        "%6}], [%7];" ::"r"(to),
        "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(mbarrier.address)
        : "memory");
  }
}

// Starts the copy of contiguous bytes to shared memory. Both addresses and the size are multiples of 16.
__device__ __forceinline__ void bulk_load(std::uint32_t to, const void* from, int bytes, const Mbarrier& mbarrier) {
  if constexpr (has_sm90) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(mbarrier.address)
                 : "memory");
  }
}

}  // namespace robocache
