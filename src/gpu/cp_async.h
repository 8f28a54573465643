// cp.async: copies from global to shared memory that run while the thread goes on. For nvcc only.
#pragma once

#include <cstdint>

namespace robocache {

// 16 bytes. Writes zeros where `real` is false, and then reads nothing from `from`.
__device__ __forceinline__ void cp_async_16(std::uint32_t to, const void* from, bool real) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0) : "memory");
}
__device__ __forceinline__ void cp_async_4(void* to, const void* from, bool real) {
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(real ? 4 : 0)
      : "memory");
}
__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `pending` groups of this thread are in flight.
template <int pending>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

}  // namespace robocache
