// Loads and stores of shared memory by its 32-bit addresses. For nvcc only.
#pragma once

#include <cstdint>

namespace robocache {

__device__ __forceinline__ void st_shared_zero_16(std::uint32_t to) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};" ::"r"(to), "r"(0) : "memory");
}
__device__ __forceinline__ void st_shared(std::uint32_t to, const std::uint32_t (&x)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}
__device__ __forceinline__ void st_shared(std::uint32_t to, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
__device__ __forceinline__ void st_shared(std::uint32_t to, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ void st_shared(std::uint32_t to, const float (&x)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}
__device__ __forceinline__ float2 ld_shared_float2(std::uint32_t from) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from));
  return x;
}
__device__ __forceinline__ float4 ld_shared_float4(std::uint32_t from) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(from));
  return x;
}

}  // namespace robocache
