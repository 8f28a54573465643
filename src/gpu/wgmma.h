// wgmma: matrix products of a warpgroup, four warps with 64 rows, that read shared memory and run asynchronously. Hopper only.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/element.h"
#include "gpu/warp.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ROBOCACHE_HAS_WGMMA 1
#else
#define ROBOCACHE_HAS_WGMMA 0
#endif

namespace robocache {

// A value that is the same in all lanes, in a form that tells the compiler so: it may then use uniform registers.
template <class Integer>
__device__ __forceinline__ Integer warp_uniform(Integer x) {
  return __shfl_sync(whole_warp, x, 0);
}

#if ROBOCACHE_HAS_WGMMA

// The shared-memory descriptor of an operand with 128-byte swizzle, as TMA writes it: rows of 128 bytes, 8 of them to a
// swizzle atom of 1024 bytes. column_block: bytes from 64 columns to the next 64, where one instruction reads more columns.
// Pass an address through warp_uniform(): otherwise every wgmma first moves its descriptor to uniform registers.
struct SmemDescriptor {
  std::uint32_t low;

  __device__ explicit SmemDescriptor(std::uint32_t address, int column_block = 16)
      : low((address & 0x3ffffu) >> 4 | static_cast<std::uint32_t>(column_block >> 4) << 16) {}
  __device__ std::uint64_t at(int bytes) const {
    constexpr std::uint64_t swizzle_128b = std::uint64_t{1} << 62;
    constexpr std::uint64_t atom = std::uint64_t{1024 >> 4} << 32;
    return swizzle_128b | atom | (low + static_cast<std::uint32_t>(bytes >> 4));
  }
};

// setmaxnreg: the registers of each thread of a warpgroup from here on. Some warpgroups give registers up, others take them.
template <int count>
__device__ __forceinline__ void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ __forceinline__ void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// The order of calls, as in CUTLASS: warpgroup_arrive(), products, warpgroup_commit_batch(), later warpgroup_wait() and then
// warpgroup_fence_operand() of what is read or reused.
__device__ __forceinline__ void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit_batch() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most `pending` batches are in flight.
template <int pending>
__device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
// Keeps uses of accumulators below the wait: the compiler does not know that the wait is what completes them.
template <int count>
__device__ __forceinline__ void warpgroup_fence_operand(float (&c)[count][4]) {
#pragma unroll
  for (int n = 0; n < count; ++n) {
    asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
  }
}
// The same for A fragments, which a wgmma reads while it runs: keeps ptxas from reusing their registers before the wait.
template <int count>
__device__ __forceinline__ void warpgroup_fence_operand(std::uint32_t (&a)[count][4]) {
#pragma unroll
  for (int n = 0; n < count; ++n) {
    asm volatile("" : "+r"(a[n][0]), "+r"(a[n][1]), "+r"(a[n][2]), "+r"(a[n][3])::"memory");
  }
}

// clang-format off
#define ROBOCACHE_F4(c, n) "+f"((c)[n][0]), "+f"((c)[n][1]), "+f"((c)[n][2]), "+f"((c)[n][3])
#define ROBOCACHE_F8(c, n) ROBOCACHE_F4(c, n), ROBOCACHE_F4(c, (n) + 1)
#define ROBOCACHE_F16(c, n) ROBOCACHE_F8(c, n), ROBOCACHE_F8(c, (n) + 2)
#define ROBOCACHE_F32(c, n) ROBOCACHE_F16(c, n), ROBOCACHE_F16(c, (n) + 4)
#define ROBOCACHE_F64(c, n) ROBOCACHE_F32(c, n), ROBOCACHE_F32(c, (n) + 8)
#define ROBOCACHE_F128(c, n) ROBOCACHE_F64(c, n), ROBOCACHE_F64(c, (n) + 16)
#define ROBOCACHE_REGISTERS_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define ROBOCACHE_REGISTERS_16 ROBOCACHE_REGISTERS_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define ROBOCACHE_REGISTERS_32 ROBOCACHE_REGISTERS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define ROBOCACHE_REGISTERS_64 ROBOCACHE_REGISTERS_32 \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
  ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define ROBOCACHE_REGISTERS_96 ROBOCACHE_REGISTERS_64 \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79" \
  ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define ROBOCACHE_REGISTERS_128 ROBOCACHE_REGISTERS_96 \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
  ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// clang-format on

// c = a b, or c += a b where `add`: 64 rows of A times 8 * count rows of B, both in shared memory, over 16 columns of each.
template <class T, int add, int count>
__device__ __forceinline__ void wgmma_ss(float (&c)[count][4], std::uint64_t a, std::uint64_t b) {
#define ROBOCACHE_PRODUCT(type, columns, registers, sums, a0, b0, add0)                                             \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " add0                                                                \
               ", 0;\n"                                                                                             \
               "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" registers "}, " a0 ", " b0 \
               ", p, 1, 1, 0, 0;}"                                                                                  \
               : sums                                                                                               \
               : "l"(a), "l"(b), "n"(add))
#define ROBOCACHE_PRODUCTS(type)                                                                      \
  if constexpr (count == 16) {                                                                        \
    ROBOCACHE_PRODUCT(type, "128", ROBOCACHE_REGISTERS_64, ROBOCACHE_F64(c, 0), "%64", "%65", "%66"); \
  } else {                                                                                            \
    ROBOCACHE_PRODUCT(type, "64", ROBOCACHE_REGISTERS_32, ROBOCACHE_F32(c, 0), "%32", "%33", "%34");  \
  }
  static_assert(count == 16 || count == 8);
  if constexpr (std::is_same_v<T, bf16>) {
    ROBOCACHE_PRODUCTS("bf16")
  } else {
    ROBOCACHE_PRODUCTS("f16")
  }
#undef ROBOCACHE_PRODUCTS
#undef ROBOCACHE_PRODUCT
}

// c[first..first + count) = a b, or += where `add`: A fragments in registers times B in shared memory, 8 * count columns of c.
// transposed: B lies as 16 rows of 8 * count columns (values), not as 8 * count rows of 16 columns (keys).
template <class T, int count, int first, int add, bool transposed, int all>
__device__ __forceinline__ void wgmma_rs(float (&c)[all][4], const std::uint32_t (&a)[4], std::uint64_t b) {
#define ROBOCACHE_PRODUCT(type, columns, registers, sums, a0, a1, a2, a3, b0, add0, transposed0)                    \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " add0                                                                \
               ", 0;\n"                                                                                             \
               "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" registers "}, {" a0 "," a1 \
               "," a2 "," a3 "}, " b0 ", p, 1, 1, " transposed0 ";}"                                                \
               : sums                                                                                               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(add), "n"(transposed ? 1 : 0))
#define ROBOCACHE_PRODUCTS(type)                                                                                       \
  if constexpr (count == 32) {                                                                                         \
    ROBOCACHE_PRODUCT(type, "256", ROBOCACHE_REGISTERS_128, ROBOCACHE_F128(c, first), "%128", "%129", "%130", "%131",  \
                      "%132", "%133", "%134");                                                                         \
  } else if constexpr (count == 16) {                                                                                  \
    ROBOCACHE_PRODUCT(type, "128", ROBOCACHE_REGISTERS_64, ROBOCACHE_F64(c, first), "%64", "%65", "%66", "%67", "%68", \
                      "%69", "%70");                                                                                   \
  } else if constexpr (count == 8) {                                                                                   \
    ROBOCACHE_PRODUCT(type, "64", ROBOCACHE_REGISTERS_32, ROBOCACHE_F32(c, first), "%32", "%33", "%34", "%35", "%36",  \
                      "%37", "%38");                                                                                   \
  } else if constexpr (count == 4) {                                                                                   \
    ROBOCACHE_PRODUCT(type, "32", ROBOCACHE_REGISTERS_16, ROBOCACHE_F16(c, first), "%16", "%17", "%18", "%19", "%20",  \
                      "%21", "%22");                                                                                   \
  } else {                                                                                                             \
    ROBOCACHE_PRODUCT(type, "16", ROBOCACHE_REGISTERS_8, ROBOCACHE_F8(c, first), "%8", "%9", "%10", "%11", "%12",      \
                      "%13", "%14");                                                                                   \
  }
  static_assert(count == 32 || count == 16 || count == 8 || count == 4 || count == 2);
  if constexpr (std::is_same_v<T, bf16>) {
    ROBOCACHE_PRODUCTS("bf16")
  } else {
    ROBOCACHE_PRODUCTS("f16")
  }
#undef ROBOCACHE_PRODUCTS
#undef ROBOCACHE_PRODUCT
}

#endif

}  // namespace robocache
