// Thread block clusters: their barrier, and distributed shared memory. Hopper and later. On older GPUs a block is alone: the
// barrier does nothing, and an address stays as it is. For nvcc only.
#pragma once

#include <cstdint>

#include "gpu/mbarrier.h"

namespace robocache {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define ROBOCACHE_CLUSTER_SPACE "::cluster"
#else
#define ROBOCACHE_CLUSTER_SPACE ""
#endif

// mapa: the address in `block`'s shared memory that corresponds to `address` here. `rank` is this block's own.
__device__ __forceinline__ std::uint32_t map_to_block(std::uint32_t address, int block, int rank) {
  if constexpr (has_sm90) {
    std::uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return block == rank ? address : there;
  }
  return address;
}
__device__ __forceinline__ float2 ld_cluster_float2(std::uint32_t from) {
  float2 x;
  asm volatile("ld.shared" ROBOCACHE_CLUSTER_SPACE ".v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from));
  return x;
}
__device__ __forceinline__ float4 ld_cluster_float4(std::uint32_t from) {
  float4 x;
  asm volatile("ld.shared" ROBOCACHE_CLUSTER_SPACE ".v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(from));
  return x;
}
#undef ROBOCACHE_CLUSTER_SPACE

// Stores two floats in a block of the cluster. The mbarrier, in that same block, counts their 8 bytes.
__device__ __forceinline__ void st_async(std::uint32_t to, float x, float y, const Mbarrier& mbarrier) {
  if constexpr (has_sm90) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1,%2}, [%3];" ::"r"(to),
                 "f"(x), "f"(y), "r"(mbarrier.address)
                 : "memory");
  }
}
// Starts a copy from this block's shared memory to that of a block of the cluster, where the mbarrier is, too.
__device__ __forceinline__ void bulk_copy_to_block(std::uint32_t to, std::uint32_t from, int bytes,
                                                   const Mbarrier& mbarrier) {
  if constexpr (has_sm90) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "r"(from), "r"(bytes), "r"(mbarrier.address)
        : "memory");
  }
}

// All threads of the cluster arrive and wait, and see what the others wrote before.
__device__ __forceinline__ void cluster_sync() {
  if constexpr (has_sm90) {
    asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
  }
}
// The same in two steps. The arrival is relaxed: it publishes no writes.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  if constexpr (has_sm90) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  if constexpr (has_sm90) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace robocache
