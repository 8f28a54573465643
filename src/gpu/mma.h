// Warp-level matrix products of half types: ldmatrix, movmatrix, mma.sync.m16n8k16 and the packing of fragments. Sums are
// float32. The names are those of the PTX instructions. For nvcc only.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/element.h"

namespace robocache {

// Two elements of a half type in one register, the first in the low bits.
template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, bf16>) {
    return bit_copy<std::uint32_t>(__floats2bfloat162_rn(low, high));
  } else {
    return bit_copy<std::uint32_t>(__floats2half2_rn(low, high));
  }
}
template <class T>
__device__ __forceinline__ float2 unpack(std::uint32_t both) {
  if constexpr (std::is_same_v<T, bf16>) {
    return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
  } else {
    return __half22float2(bit_copy<__half2>(both));
  }
}

// Accumulators of 8 columns each become A fragments of 16 columns each, rounded to a half type. Fragment n is made of the
// accumulators 2 n and 2 n + 1.
template <class T, int count>
__device__ __forceinline__ void pack_fragment(std::uint32_t (&a)[4], const float (&c)[count][4], int n) {
#pragma unroll
  for (int k = 0; k < 4; ++k) a[k] = pack<T>(c[2 * n + k / 2][k % 2 * 2], c[2 * n + k / 2][k % 2 * 2 + 1]);
}
template <class T, int count>
__device__ __forceinline__ void pack_fragments(std::uint32_t (&a)[count][4], const float (&c)[2 * count][4]) {
#pragma unroll
  for (int n = 0; n < count; ++n) pack_fragment<T>(a[n], c, n);
}

// c += a b, 16 x 8 from 16 x 16 and 16 x 8. A thread holds rows lane / 4 and lane / 4 + 8 of c, and of these the columns
// 2 * (lane % 4) and the next one: c[0] and c[1] of the first row, c[2] and c[3] of the second.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
  if constexpr (std::is_same_v<T, bf16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Four 8 x 8 matrices from shared memory. Lane k gives the address of row k % 8 of matrix k / 8.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// Transposes an 8 x 8 matrix that the warp holds in registers.
__device__ __forceinline__ std::uint32_t movmatrix_trans(std::uint32_t x) {
  std::uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

}  // namespace robocache
