// Products of a warpgroup: four warps with 64 rows, right operands in shared memory (Hopper's wgmma). A thread has the places
// of the sums that it has in products of its warp alone (cuda_tiles.h).
#pragma once

#include "ops/attention/cuda_tiles.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ROBOCACHE_WARPGROUPS 1
#else
#define ROBOCACHE_WARPGROUPS 0
#endif

namespace robocache::attention_op {
namespace {

#if ROBOCACHE_WARPGROUPS

// Where an operand lies: rows of 128 bytes, in which 16 bytes lie as the copy engine leaves them; eight rows are a block.
// The address is the same for all lanes, and told so by uniform(), or each product would begin with bringing it there.
// column_block: bytes from 64 columns to the next, where one product has more.
struct Operand {
  std::uint32_t low;

  __device__ explicit Operand(std::uint32_t address, int column_block = 16)
      : low((address & 0x3ffffu) >> 4 | static_cast<std::uint32_t>(column_block >> 4) << 16) {}
  __device__ std::uint64_t at(int bytes) const {
    constexpr std::uint64_t swizzled = std::uint64_t{1} << 62;
    constexpr std::uint64_t block = std::uint64_t{1024 >> 4} << 32;
    return swizzled | block | (low + static_cast<std::uint32_t>(bytes >> 4));
  }
};

// How many registers each thread of a warpgroup has from here on: fewer, or more, which others have given up.
template <int count>
__device__ void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// Products run on while their warps do other things: they are begun, in groups, and waited for.
__device__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void end_group_of_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until no more than `pending` groups are under way. Whoever reads sums then says so by are_there().
template <int pending>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
template <int count>
__device__ void are_there(float (&c)[count][4]) {
#pragma unroll
  for (int n = 0; n < count; ++n) {
    asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
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

// c = a b, or += where `add`: 64 rows of shared memory times 8 * count rows of shared memory, 16 columns of each.
template <class T, int add, int count>
__device__ void multiply_shared(float (&c)[count][4], std::uint64_t a, std::uint64_t b) {
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

// c[first..first + count) = a b, or += where `add`: fragments times shared memory, 8 * count columns. These are rows there,
// of which 16 columns are multiplied, or columns of 16 rows where `values`.
template <class T, int count, int first, int add, bool values, int all>
__device__ void multiply_fragments(float (&c)[all][4], const std::uint32_t (&a)[4], std::uint64_t b) {
#define ROBOCACHE_PRODUCT(type, columns, registers, sums, a0, a1, a2, a3, b0, add0, values0)                        \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " add0                                                                \
               ", 0;\n"                                                                                             \
               "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" registers "}, {" a0 "," a1 \
               "," a2 "," a3 "}, " b0 ", p, 1, 1, " values0 ";}"                                                    \
               : sums                                                                                               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(add), "n"(values ? 1 : 0))
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

// A warpgroup's 64 rows of queries: fragments where there are registers for them, else where they lie.
template <class T, int D, int keys>
struct LeftQueries {
  static constexpr bool kept = tuning::keep_queries(D, keys);
  std::uint32_t fragments[kept ? D / 16 : 1][4];
  Operand operand;
  int block;  // bytes from 64 columns to the next

  __device__ LeftQueries(const WideTile<D>& queries, int row_warp)
      : operand(queries.place(row_warp / 4 * 64, 0)), block(queries.block_bytes()) {
    if constexpr (kept) {
      const auto lane = static_cast<int>(threadIdx.x % warp_size);
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        load_matrices(fragments[d], queries.place(row_warp * warp_rows + lane % 16, d * 16 + lane / 16 * 8));
      }
    }
  }
  // 16 columns of them times those of keys, and the next.
  template <int d>
  __device__ void multiply(float (&scores)[keys / 8][4], const Operand& of) const {
    const std::uint64_t right = of.at(d / 4 * StageTile<D, keys>::block_bytes + d % 4 * 32);
    if constexpr (kept) {
      multiply_fragments<T, keys / 8, 0, d != 0, false>(scores, fragments[d], right);
    } else {
      multiply_shared<T, d != 0>(scores, operand.at(d / 4 * block + d % 4 * 32), right);
    }
    if constexpr (d + 1 < D / 16) multiply<d + 1>(scores, of);
  }
};

// Begins scores of 64 rows of queries and a tile of keys.
template <class T, int D, int keys>
__device__ void begin_scores(float (&scores)[keys / 8][4], const LeftQueries<T, D, keys>& queries, const Operand& of) {
  begin_products();
  queries.template multiply<0>(scores, of);
  end_group_of_products();
}

// Columns [8 * first, D) in products that are as wide as they can be; of 16 keys from `row` on.
template <class T, int D, int keys, int first = 0>
__device__ void add_columns(float (&out)[D / 8][4], const std::uint32_t (&weights)[4], const Operand& values, int row) {
  if constexpr (first < D / 8) {
    constexpr int left = D / 8 - first;
    constexpr int count = left == 32 || left == 16 ? left : (left >= 8 ? 8 : (left >= 4 ? 4 : 2));
    multiply_fragments<T, count, first, 1, true>(
        out, weights, values.at(first / 8 * StageTile<D, keys>::block_bytes + first % 8 * 16 + row * 128));
    add_columns<T, D, keys, first + count>(out, weights, values, row);
  }
}

// Begins out += weights of 64 rows and a tile of keys times the values of these.
template <class T, int D, int keys>
__device__ void begin_sums(float (&out)[D / 8][4], const std::uint32_t (&weights)[keys / 16][4],
                           const StageTile<D, keys>& values) {
  const Operand operand(values.base, values.block_bytes);
  begin_products();
#pragma unroll
  for (int n = 0; n < keys / 16; ++n) add_columns<T, D, keys>(out, weights[n], operand, n * 16);
  end_group_of_products();
}
#endif

}  // namespace
}  // namespace robocache::attention_op
