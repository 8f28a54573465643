// mbarrier: a barrier in shared memory that counts arrivals of threads and bytes of asynchronous copies. Hopper and later;
// on older GPUs every function here does nothing. For nvcc only.
#pragma once

#include <cstdint>

namespace robocache {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
inline constexpr bool has_sm90 = true;
#else
inline constexpr bool has_sm90 = false;
#endif

// An mbarrier at a shared-memory address. A phase completes when all arrivals and all expected bytes are there. wait(phase)
// returns once the phase of that parity is complete: the first phase has parity 0.
struct Mbarrier {
  std::uint32_t address;

  // By one thread, before any other thread uses it.
  __device__ void init(int arrivals = 1) const {
    if constexpr (has_sm90) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(arrivals) : "memory");
    }
  }
  __device__ void arrive() const {
    if constexpr (has_sm90) {
      asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
    }
  }
  // One arrival, which also adds to the bytes that the phase waits for.
  __device__ void arrive_expect_tx(int bytes) const {
    if constexpr (has_sm90) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
    }
  }
  __device__ void wait(unsigned phase) const {
    if constexpr (has_sm90) {
      asm volatile(
          "{.reg .pred p;\n"
          "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
          "@!p bra again;}" ::"r"(address),
          "r"(phase)
          : "memory");
    }
  }
};

// Makes mbarriers that this thread initialized visible to the other blocks of the cluster. A cluster barrier must follow.
__device__ __forceinline__ void fence_mbarrier_init() {
  if constexpr (has_sm90) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Orders this thread's earlier writes to shared memory before later accesses by TMA and wgmma (the async proxy).
__device__ __forceinline__ void fence_proxy_async() {
  if constexpr (has_sm90) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace robocache
