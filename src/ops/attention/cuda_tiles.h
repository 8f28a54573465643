// What the kernels of half types are made of: tiles of rows in shared memory, and the tensor cores' fragments of them.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/cuda.h"
#include "core/division.h"
#include "ops/attention/check.h"
#include "ops/attention/cuda_call.h"
#include "ops/attention/kernel.h"
#include "ops/attention/tuning.h"

namespace robocache::attention_op {
namespace {

constexpr unsigned whole_warp = 0xffffffffu;
constexpr float log2_e = 1.4426950408889634f;
constexpr float ln_2 = 0.6931471805599453f;

__device__ float minus_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }
__device__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What is the same in all lanes, and the compiler does not know so.
template <class Integer>
__device__ Integer uniform(Integer x) {
  return __shfl_sync(whole_warp, x, 0);
}

// ---- fragments -----------------------------------------------------------------------------------------------------

// Two elements of a half type, the first in the low bits.
template <class T>
__device__ std::uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, bf16>) {
    return bit_copy<std::uint32_t>(__floats2bfloat162_rn(low, high));
  } else {
    return bit_copy<std::uint32_t>(__floats2half2_rn(low, high));
  }
}

// c += a b: 16 x 8 from 16 x 16 and 16 x 8. A thread has rows lane / 4 and lane / 4 + 8 of c, columns 2 * (lane % 4) and
// the next.
template <class T>
__device__ void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
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

__device__ void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ void load_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// ---- tiles ---------------------------------------------------------------------------------------------------------

// Rows of D elements in shared memory.
template <int D>
struct Tile {
  static_assert(D % 16 == 0);
  static constexpr int pitch = Memory::row_bytes(D);
  std::uint32_t base;

  __device__ std::uint32_t place(int row, int column) const { return base + row * pitch + column * 2; }

  // As the left operand: rows [row, row + 16), columns [column, column + 16).
  __device__ std::uint32_t left(int row, int column) const {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    return base + (row + lane % 16) * pitch + (column + lane / 16 * 8) * 2;
  }
  // As the right operand whose columns are rows [row, row + 16) here: of two products.
  __device__ std::uint32_t right(int row, int column) const {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    return base + (row + lane % 8 + lane / 16 * 8) * pitch + (column + lane / 8 % 2 * 8) * 2;
  }
  // The right operand of rows [row, row + 16) as they are, through load_transposed, has the addresses of `left`.
};

// Keys or values of a stage, as the copy engine leaves them: for each warp along the keys, and each 64 columns, rows of 128
// bytes, in which the 16 bytes numbered k are at place k ^ row % 8, so that eight rows of a matrix lie in different banks.
template <int D, int stage_keys>
struct StageTile {
  static constexpr int keys = stage_keys;
  static constexpr int block_bytes = keys * 128;
  static constexpr int blocks = Memory::column_blocks(D);
  static constexpr int warp_bytes = 2 * blocks * block_bytes;  // keys, then values
  std::uint32_t base;

  __device__ std::uint32_t place(int row, int column) const {
    return base + row / keys * warp_bytes + column / 64 * block_bytes + row % keys * 128 +
           (column / 8 % 8 ^ row % 8) * 16;
  }
};
// Those of one warp, for its own products: rows are multiples of 16, as in Tile.
template <int D>
struct WarpTile {
  static constexpr int block_bytes = StageTile<D, tuning::keys(D, false)>::block_bytes;
  std::uint32_t rights, lefts, right_column, left_column;

  __device__ explicit WarpTile(std::uint32_t base) {
    const std::uint32_t lane = threadIdx.x % warp_size;
    rights = base + (lane % 8 + lane / 16 * 8) * 128;
    lefts = base + lane % 16 * 128;
    right_column = (lane / 8 % 2 ^ lane % 8) * 16;
    left_column = (lane / 16 ^ lane % 8) * 16;
  }
  __device__ std::uint32_t right(int row, int column) const {
    return rights + column / 64 * block_bytes + row * 128 + (right_column ^ column / 16 % 4 * 32);
  }
  __device__ std::uint32_t left(int row, int column) const {
    return lefts + column / 64 * block_bytes + row * 128 + (left_column ^ column / 16 % 4 * 32);
  }
};

__device__ void copy_async(std::uint32_t to, const void* from, bool real) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0) : "memory");
}
__device__ void copy_word_async(void* to, const void* from, bool real) {
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(real ? 4 : 0)
      : "memory");
}
__device__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending>
__device__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Which eight columns of which rows a thread copies, of a block or of some of its warps.
template <int D>
struct Copier {
  static constexpr int lanes = D <= 32 ? 4 : (D <= 64 ? 8 : (D <= 128 ? 16 : 32));  // of a row
  static constexpr int rows = warp_size / lanes;                                    // that a warp has at a time
  int column, first, step;

  __device__ Copier() : Copier(static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)) {}
  __device__ Copier(int thread, int threads)
      : column(thread % lanes * 8), first(thread / lanes), step(threads / lanes) {}
};

// Queries for products of warpgroups: 64 columns of all rows after each other, in rows of 128 bytes as above.
template <int D>
struct WideTile {
  std::uint32_t base;
  int rows;

  __device__ int block_bytes() const { return rows * 128; }
  __device__ std::uint32_t place(int row, int column) const {
    return base + column / 64 * block_bytes() + row * 128 + (column / 8 % 8 ^ row % 8) * 16;
  }
};

// ---- the copy engine: Hopper and later -----------------------------------------------------------------------------

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
inline constexpr bool has_copy_engine = true;
#else
inline constexpr bool has_copy_engine = false;
#endif

// Counts the bytes of copies that are under way. In shared memory; one thread sets it up before others see it.
struct Arrivals {
  std::uint32_t address;

  __device__ void set_up(int count = 1) const {
    if constexpr (has_copy_engine) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(count) : "memory");
    }
  }
  __device__ void arrive() const {
    if constexpr (has_copy_engine) {
      asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
    }
  }
  // By one thread: so many bytes will come.
  __device__ void expect(int bytes) const {
    if constexpr (has_copy_engine) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
    }
  }
  __device__ void wait(unsigned parity) const {
    if constexpr (has_copy_engine) {
      asm volatile(
          "{.reg .pred p;\n"
          "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
          "@!p bra again;}" ::"r"(address),
          "r"(parity)
          : "memory");
    }
  }
  // 64 columns of a block of rows, or all of them after each other (Memory::tile_copies), zeros where there are none.
  __device__ void copy(std::uint32_t to, const CUtensorMap& from, int column, int row, int head, int sequence) const {
    if constexpr (has_copy_engine) {
      asm volatile(
          "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, 0, %4, "
          "%5}], "
          "[%6];" ::"r"(to),
          "l"(&from), "r"(column), "r"(row), "r"(head), "r"(sequence), "r"(address)
          : "memory");
    }
  }
  // Two floats into a block of the cluster, where these arrivals and `to` are.
  __device__ void write(std::uint32_t to, float x, float y) const {
    if constexpr (has_copy_engine) {
      asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1,%2}, [%3];" ::"r"(to),
                   "f"(x), "f"(y), "r"(address)
                   : "memory");
    }
  }
  // From here to the block of the cluster whose arrivals these are, and where `to` is.
  __device__ void copy_to_block(std::uint32_t to, std::uint32_t from, int bytes) const {
    if constexpr (has_copy_engine) {
      asm volatile(
          "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
          "r"(from), "r"(bytes), "r"(address)
          : "memory");
    }
  }
};
// Of queries: of a key head, 64 columns of all heads of so many queries.
__device__ void copy_queries(std::uint32_t to, const CUtensorMap& from, int column, int query, int kv_head,
                             int sequence, const Arrivals& arrivals) {
  if constexpr (has_copy_engine) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, 0, %3, %4, "
        "%5}], [%6];" ::"r"(to),
        "l"(&from), "r"(column), "r"(query), "r"(kv_head), "r"(sequence), "r"(arrivals.address)
        : "memory");
  }
}
__device__ void bring_near(const CUtensorMap& map) {
  if constexpr (has_copy_engine) asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// One thread of a warp, which the compiler knows to be one.
__device__ bool is_chosen() {
  if constexpr (has_copy_engine) {
    std::uint32_t chosen;
    asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(chosen));
    return chosen != 0;
  }
  return threadIdx.x % warp_size == 0;
}
// What threads have written to shared memory is there before the engine writes, and what set_up() did.
__device__ void before_engine() {
  if constexpr (has_copy_engine) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ void write_zeros(std::uint32_t to) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};" ::"r"(to), "r"(0) : "memory");
}
__device__ void write_shared(std::uint32_t to, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
__device__ void write_shared(std::uint32_t to, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}

__device__ void write_shared(std::uint32_t to, const float (&x)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}
__device__ float2 read_shared_pair(std::uint32_t from) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from));
  return x;
}
__device__ float4 read_shared_quad(std::uint32_t from) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(from));
  return x;
}

// ---- clusters: Hopper and later ------------------------------------------------------------------------------------

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define ROBOCACHE_OF_CLUSTER "::cluster"
#else
#define ROBOCACHE_OF_CLUSTER ""
#endif

// Where another block has what is at this address here.
__device__ std::uint32_t of_block(std::uint32_t address, int block, int mine) {
  if constexpr (has_copy_engine) {
    std::uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return block == mine ? address : there;
  }
  return address;
}
__device__ float2 read_cluster_pair(std::uint32_t from) {
  float2 x;
  asm volatile("ld.shared" ROBOCACHE_OF_CLUSTER ".v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from));
  return x;
}
__device__ float4 read_cluster_quad(std::uint32_t from) {
  float4 x;
  asm volatile("ld.shared" ROBOCACHE_OF_CLUSTER ".v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(from));
  return x;
}
#undef ROBOCACHE_OF_CLUSTER
// All that others have written is seen.
__device__ void wait_for_cluster() {
  if constexpr (has_copy_engine) {
    asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
  }
}
// Others have read what they wanted; in two steps, or in one.
__device__ void arrive_in_cluster() {
  if constexpr (has_copy_engine) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ void wait_in_cluster() {
  if constexpr (has_copy_engine) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ void leave_cluster() {
  arrive_in_cluster();
  wait_in_cluster();
}
// What counts arrivals is set up before other blocks, which wait in between, send to it.
__device__ void before_cluster() {
  if constexpr (has_copy_engine) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Eight elements that may lie anywhere; nullptr: zeros.
template <class T>
__device__ void copy_slowly(std::uint32_t to, const T* from) {
  std::uint32_t words[4] = {};
  if (from != nullptr) {
    const auto* const bits = reinterpret_cast<const std::uint16_t*>(from);
#pragma unroll
    for (int k = 0; k < 4; ++k) words[k] = bits[2 * k] | static_cast<std::uint32_t>(bits[2 * k + 1]) << 16;
  }
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}

// ---- where a block works -------------------------------------------------------------------------------------------

// Which tile of which sequence and key head a block has.
struct Units {
  int tiles = 0;  // of a sequence; packed: of all, at most, and one more
  int split = 1;  // blocks that share a tile
  int group = 1;  // query heads of a key head
  Division by_tiles, by_heads, by_split, by_group;

  Units() = default;
  Units(const Plan& plan, std::int64_t tile_count, int split_into)
      : tiles(static_cast<int>(tile_count)),
        split(split_into),
        group(static_cast<int>(plan.group())),
        by_tiles(at_least_one(tile_count)),
        by_heads(at_least_one(plan.kv_heads)),
        by_split(at_least_one(split_into)),
        by_group(at_least_one(plan.group())) {}

 private:
  // Where there are none there are no blocks that would divide.
  static std::uint32_t at_least_one(std::int64_t count) { return static_cast<std::uint32_t>(count < 1 ? 1 : count); }
};
struct Unit {
  std::int64_t sequence = -1;  // -1: there is none
  int kv_head = 0;
  int tile = 0;
  int rank = 0;  // among the blocks that share it
};
// per_sequence(s) counts what is cut into tiles: rows, or keys. Of packed sequences every warp looks for its own; apart, for
// the others not to be made slower by it.
template <class PerSequence>
__device__ __noinline__ Unit find_packed(const Plan& plan, Unit found, int tile_size, PerSequence per_sequence) {
  found.sequence = -1;
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  int before = 0;  // tiles of the sequences before
  for (std::int64_t base = 0; base < plan.batch; base += warp_size) {
    int mine = 0;
    if (base + lane < plan.batch) {
      mine = static_cast<int>(divide_up(per_sequence(sequence_of(plan, base + lane)), tile_size));
    }
    const int sum = sum_up_to_lane(mine);
    const unsigned past = __ballot_sync(whole_warp, before + sum > found.tile);
    if (past != 0) {
      const int owner = __ffs(static_cast<int>(past)) - 1;
      found.sequence = base + owner;
      found.tile -= before + __shfl_sync(whole_warp, sum - mine, owner);
      return found;
    }
    before += __shfl_sync(whole_warp, sum, warp_size - 1);
  }
  return found;
}
template <class PerSequence>
__device__ Unit unit_of(const Plan& plan, const Units& units, int tile_size, PerSequence per_sequence,
                        std::uint32_t block = blockIdx.x) {
  Unit found;
  std::uint32_t number = units.by_split.divide(block);
  found.rank = static_cast<int>(block - number * static_cast<std::uint32_t>(units.split));
  const std::uint32_t rest = units.by_tiles.divide(number);
  found.tile = static_cast<int>(number - rest * static_cast<std::uint32_t>(units.tiles));
  number = units.by_heads.divide(rest);
  found.kv_head = static_cast<int>(rest - number * static_cast<std::uint32_t>(plan.kv_heads));
  found.sequence = number;
  return plan.is_packed() ? find_packed(plan, found, tile_size, per_sequence) : found;
}

// The rows of a block are queries of all heads that share a key head, one query's heads after each other.
struct Rows {
  Sequence s;
  int kv_head = 0;
  int first = 0;  // of the sequence's rows
  int count = 0;  // of them, over all blocks
  int group = 1;
  Division by_group;
  int rank = 0;  // of the block, among those with the same rows

  __device__ bool exists(int row) const { return first + row < count; }
  __device__ int query(int row) const {
    return static_cast<int>(by_group.divide(static_cast<std::uint32_t>(first + row)));
  }
  __device__ int head(int row) const { return kv_head * group + first + row - query(row) * group; }
  // Where a row begins: from where the first head's first query does, which all rows share.
  __device__ std::int64_t base(const Vectors& vectors) const {
    return offset_of(vectors, s.number, static_cast<std::int64_t>(kv_head) * group, s.first_query);
  }
  __device__ std::int64_t within(const Vectors& vectors, int row) const {
    const int i = query(row);
    return i * vectors.row + (first + row - i * group) * vectors.head;
  }
  __device__ std::int64_t offset(const Vectors& vectors, int row) const { return base(vectors) + within(vectors, row); }
  __device__ std::int64_t lse_offset(const Plan& plan, int row) const {
    return s.number * plan.lse_batch + head(row) * plan.lse_head + s.first_query + query(row);
  }
};

// ---- keys ----------------------------------------------------------------------------------------------------------

// Key j of a sequence, or its values.
template <class T>
__device__ const T* key_at(const Plan& plan, const Sequence& s, int kv_head, bool values, std::int64_t j) {
  const Place place = place_of(plan, s, j);
  const Segment& segment = plan.segments[place.segment];
  const Vectors& vectors = values ? segment.values : segment.keys;
  return static_cast<const T*>(vectors.data) + offset_of(vectors, s.number, kv_head, place.n);
}

// Copies that the common ones are not made slower by: rows in several segments, and rows that begin anywhere.
template <class T, int D, class KeyTile>
__device__ __noinline__ void copy_keys_slowly(const Plan& plan, Sequence s, int kv_head, int first, int left,
                                              KeyTile keys, KeyTile values, int rows, bool aligned) {
  const Copier<D> copier;
  if (copier.column >= D) return;
  for (int row = copier.first; row < rows; row += copier.step) {
    const bool real = row < left && copier.column < plan.head_dim;
    const T* const key = real ? key_at<T>(plan, s, kv_head, false, first + row) + copier.column : nullptr;
    const T* const value = real ? key_at<T>(plan, s, kv_head, true, first + row) + copier.column : nullptr;
    if (aligned) {
      copy_async(keys.place(row, copier.column), key, real);
      copy_async(values.place(row, copier.column), value, real);
    } else {
      copy_slowly(keys.place(row, copier.column), key);
      copy_slowly(values.place(row, copier.column), value);
    }
  }
}

// Keys and values of one head, stage after stage: where the segment that they lie in begins is looked up once.
template <class T, int D, class KeyTile>
class KeySource {
 public:
  __device__ KeySource(const Plan& plan, const Sequence& s, int kv_head, bool aligned)
      : plan_(plan), s_(s), kv_head_(kv_head), aligned_(aligned), end_(static_cast<int>(s.cached)) {
    if (plan.segment_count == 1) end_ = static_cast<int>(s.keys);
    set();
  }

  // Copies [first, first + rows); those from `end` on become zeros. Calls go forwards.
  __device__ void copy(int first, int end, const KeyTile& keys, const KeyTile& values, int rows) {
    const int left = min(end - first, rows);
    if (!is_plain(first, left)) {
      return copy_keys_slowly<T, D, KeyTile>(plan_, s_, kv_head_, first, left, keys, values, rows, aligned_);
    }
    if (copier_.column >= D) return;
    const int real = copier_.column < plan_.head_dim ? left : 0;
    const T* key = key_ + (first - begin_) * key_row_;
    const T* value = value_ + (first - begin_) * value_row_;
    constexpr int together = 4;  // whose addresses are in registers of their own, so that none waits for another
    for (int row = copier_.first; row < rows; row += together * copier_.step) {
#pragma unroll
      for (int k = 0; k < together; ++k) {
        const int here = row + k * copier_.step;
        if (here < rows) {
          copy_async(keys.place(here, copier_.column), key + k * copier_.step * key_row_, here < real);
          copy_async(values.place(here, copier_.column), value + k * copier_.step * value_row_, here < real);
        }
      }
      key += together * copier_.step * key_row_;
      value += together * copier_.step * value_row_;
    }
  }

  // The same through the copy engine, by one warp; rows behind `end` may become anything. False: they are not all in one
  // segment, and nothing was copied.
  __device__ bool copy_by_engine(int first, int end, std::uint32_t stage, int warps, const CUtensorMap (*maps)[2],
                                 const Arrivals& arrivals) {
    using Stage = KeyTile;
    const int left = min(end - first, warps * Stage::keys);
    if (!is_plain(first, left)) return false;
    if (threadIdx.x >= warp_size) return true;
    const int copies = (left + Stage::keys - 1) / Stage::keys * 2 * Stage::blocks;
    if (threadIdx.x == 0) arrivals.expect(copies * Stage::block_bytes);
    const int row = static_cast<int>(segment_ == 0 ? s_.first_key : 0) + first - begin_;
    const auto sequence = static_cast<int>(plan_.is_packed() ? 0 : s_.number);
    for (int k = static_cast<int>(threadIdx.x); k < copies; k += warp_size) {
      const int block = k % Stage::blocks;
      const int half = k / Stage::blocks;  // keys and values in turn
      arrivals.copy(stage + k * Stage::block_bytes, maps[segment_][half % 2], block * 64, row + half / 2 * Stage::keys,
                    kv_head_, sequence);
    }
    return true;
  }

 private:
  // Whether they all lie in one segment, and where 16 bytes can be read at a time. Calls go forwards.
  __device__ bool is_plain(int first, int left) {
    while (first >= end_ && segment_ + 1 < plan_.segment_count) {
      begin_ = end_;
      ++segment_;
      end_ = begin_ + static_cast<int>(plan_.segments[segment_].count);
      set();
    }
    return aligned_ && first + left <= end_;
  }
  __device__ void set() {
    const Segment& segment = plan_.segments[segment_];
    const std::int64_t place = (segment_ == 0 ? s_.first_key : 0) + copier_.first;
    key_row_ = segment.keys.row;
    value_row_ = segment.values.row;
    key_ =
        static_cast<const T*>(segment.keys.data) + offset_of(segment.keys, s_.number, kv_head_, place) + copier_.column;
    value_ = static_cast<const T*>(segment.values.data) + offset_of(segment.values, s_.number, kv_head_, place) +
             copier_.column;
  }

  const Plan& plan_;
  const Sequence& s_;
  int kv_head_;
  bool aligned_;
  Copier<D> copier_;
  int segment_ = 0;
  int begin_ = 0, end_;  // of the segment, counted as the sequence's keys
  const T* key_;         // where this thread's part of the segment's first row is
  const T* value_;
  std::int64_t key_row_, value_row_;
};

// Rows of queries, of outputs or of their gradients; zeros behind the last.
template <class T, int D, class RowTile>
__device__ void copy_rows(const Plan& plan, const Vectors& vectors, const Rows& rows, const RowTile& tile, int count,
                          bool aligned, Copier<D> copier = {}) {
  if (copier.column >= D) return;
  const T* const base = static_cast<const T*>(vectors.data) + rows.base(vectors) + copier.column;
  const int real = copier.column < plan.head_dim ? min(count, rows.count - rows.first) : 0;
#pragma unroll 4
  for (int row = copier.first; row < count; row += copier.step) {
    const T* const from = base + (row < real ? rows.within(vectors, row) : 0);
    if (aligned) {
      copy_async(tile.place(row, copier.column), from, row < real);
    } else {
      copy_slowly(tile.place(row, copier.column), row < real ? from : nullptr);
    }
  }
}

// The keys that any of a block's rows sees by its position.
__device__ KeyRange keys_for(const Plan& plan, const Rows& rows, int block_rows) {
  const int last_row = min(block_rows, rows.count - rows.first) - 1;
  return {keys_in_window(plan, rows.s, rows.query(0)).first, keys_in_window(plan, rows.s, rows.query(last_row)).end};
}

// Where warpgroups have the keys of a segment. Spots of keys are their numbers, but that each segment begins with a tile of its own,
// so that no tile is of two: behind the last key of one there may be spots without.
template <int keys>
struct Span {
  int segment = 0;
  int begin = 0, count = 0;  // its first spot, and keys
  int first = 0;             // which of all keys its first is

  __device__ explicit Span(const Sequence& s) : count(static_cast<int>(s.cached)) {}
  __device__ int end() const { return begin + count; }
  __device__ int next() const { return begin + (count + keys - 1) / keys * keys; }
  __device__ void go_on(const Plan& plan) {
    begin = next();
    first += count;
    count = static_cast<int>(plan.segments[++segment].count);
  }
  __device__ void go_to_spot(const Plan& plan, int spot) {
    while (segment + 1 < plan.segment_count && spot >= next()) go_on(plan);
  }
};
template <int keys>
__device__ Span<keys> span_at(const Plan& plan, const Sequence& s, int spot) {
  Span<keys> span(s);
  span.go_to_spot(plan, spot);
  return span;
}
template <int keys>
__device__ int spot_of_key(const Plan& plan, const Sequence& s, int key) {
  Span<keys> span(s);
  while (span.segment + 1 < plan.segment_count && key >= span.first + span.count) span.go_on(plan);
  return span.begin + key - span.first;
}
// Of keys [first, end).
template <int keys>
__device__ void turn_to_spots(const Plan& plan, const Sequence& s, int& first, int& end) {
  if (first >= end) return;
  first = spot_of_key<keys>(plan, s, first);
  end = spot_of_key<keys>(plan, s, end - 1) + 1;
}

// What a query needs to know of itself.
struct QueryView {
  int first = 0, end = 0;  // keys in its window
  std::int32_t rank = most_rank;
};
__device__ QueryView query_view(const Plan& plan, const Rows& rows, int row) {
  QueryView view;
  if (!rows.exists(row)) return view;
  const int i = rows.query(row);
  const KeyRange range = keys_in_window(plan, rows.s, i);
  view.first = static_cast<int>(range.first);
  view.end = static_cast<int>(range.end);
  if (plan.query_ranks.data != nullptr) view.rank = rank_at(plan.query_ranks, rows.s.number, rows.s.first_query + i);
  return view;
}
// The most that any row of a block has, by all lanes.
__device__ std::int32_t most_rank_of(const Plan& plan, const Rows& rows, int block_rows) {
  if (plan.query_ranks.data == nullptr) return most_rank;
  std::int32_t most = least_rank;
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x % warp_size); row < block_rows; row += warp_size) {
    if (rows.exists(row)) most = max(most, query_view(plan, rows, row).rank);
  }
  return __reduce_max_sync(whole_warp, most);
}
// And a key: a query sees it whose rank is not below view(). most_rank + 1: none does.
struct KeyView {
  std::int32_t rank = least_rank;
  std::uint32_t valid = 0;  // as it was loaded: nothing waits for it before view() does

  KeyView() = default;
  // Of the keys before `end`.
  __device__ KeyView(const Plan& plan, const Sequence& s, int j, int end) : valid(j < end ? 1 : 0) {
    if (j >= end) return;
    if (plan.key_ranks.data != nullptr) {
      rank = static_cast<const std::int32_t*>(
          plan.key_ranks.data)[s.number * plan.key_ranks.batch + (s.first_key + j) * plan.key_ranks.row];
    }
    if (plan.key_valid.data != nullptr) {
      valid = static_cast<const std::uint8_t*>(
          plan.key_valid.data)[s.number * plan.key_valid.batch + (s.first_key + j) * plan.key_valid.row];
    }
  }
  __device__ std::int32_t view() const { return valid != 0 ? min(rank, most_rank) : most_rank + 1; }
};

// Whether a query sees key j, but for a dense mask,
__device__ bool sees(const QueryView& query, std::int32_t key, int j) {
  return key <= query.rank && j >= query.first && j < query.end;
}
// and by that.
__device__ bool is_allowed(const Plan& plan, const Rows& rows, int row, int j) {
  return plan.dense == nullptr || plan.dense[rows.s.number * plan.dense_batch + rows.head(row) * plan.dense_head +
                                             rows.query(row) * plan.dense_query + j * plan.dense_key] != 0;
}

// Two bits as two halves of a word, all ones or all zeros.
__device__ std::uint32_t halves_of(std::uint32_t bits) {
  return (bits & 1u ? 0xffffu : 0u) | (bits & 2u ? 0xffff0000u : 0u);
}

// Of bits for a thread's columns, those that any row of the warp has.
__device__ std::uint32_t of_any_row(std::uint32_t bits) {
#pragma unroll
  for (int step = 4; step < warp_size; step *= 2) bits |= __shfl_xor_sync(whole_warp, bits, step);
  return bits;
}

// Values of keys that no row of the block may see become zeros: they may be NaN, which a weight of zero does not stop.
template <int D, int keys>
__device__ void clear_unseen(const StageTile<D, keys>& values, unsigned unseen, int first) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  while (unseen != 0) {
    const int row = first + __ffs(static_cast<int>(unseen)) - 1;
    unseen &= unseen - 1;
    if (lane < D / 8) write_zeros(values.place(row, lane * 8));
  }
}
// And rows from `first` on, by the whole block: the engine has copied what comes after the last key.
template <int D, int keys>
__device__ void clear_rows(const StageTile<D, keys>& values, int first, int rows) {
  for (int k = static_cast<int>(threadIdx.x); k < (rows - first) * (D / 8); k += static_cast<int>(blockDim.x)) {
    copy_slowly<bf16>(values.place(first + k / (D / 8), k % (D / 8) * 8), nullptr);
  }
}
// Barriers of a block have numbers. 0: of all its warps that sum. From 1 on: of the warps with the same keys, which share the
// clearing of values; or from 2 on, of warpgroups that begin their products in turn. Where some warps have narrow rows there are
// at most two shares of keys, and these:
constexpr int stage_barrier = 4;    // and on: values of a stage have been cleared
constexpr int narrow_barrier = 15;  // of the warps with narrow rows
static_assert(tuning::warpgroups(64, true) < stage_barrier && stage_barrier + tuning::most_stages <= narrow_barrier);

// The warps with the same keys share that, and wait for each other before they read.
__device__ void wait_for_warps(int barrier, int warps) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(warps * warp_size) : "memory");
}
// The same without waiting: others do.
__device__ void let_warps_pass(int barrier, int warps) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(warps * warp_size) : "memory");
}

// What of keys [begin, end) is one block's of those that split them, in multiples of `least` keys. How many of them have any.
__device__ int take_share(const Units& units, int rank, int least, int& begin, int& end) {
  const int all = max(end - begin, 0);
  if (units.split == 1 || all == 0) return 1;
  const auto share = static_cast<int>(units.by_split.divide(static_cast<std::uint32_t>(all + units.split - 1)));
  const int rounded = (share + least - 1) / least * least;
  begin += rank * rounded;
  end = min(end, begin + rounded);
  return (all + rounded - 1) / rounded;
}

// Four elements of a row that is written; aligned: to eight bytes.
template <class T>
__device__ void store_quad(T* to, bool aligned, const float (&x)[4]) {
  const std::uint32_t words[2] = {pack<T>(x[0], x[1]), pack<T>(x[2], x[3])};
  if (aligned) {
    *reinterpret_cast<uint2*>(to) = uint2{words[0], words[1]};
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) to[k].bits = static_cast<std::uint16_t>(words[k / 2] >> k % 2 * 16);
  }
}

// Two elements of a row that is written; aligned: to four bytes.
template <class T>
__device__ void store_pair(T* to, bool aligned, float low, float high) {
  const std::uint32_t both = pack<T>(low, high);
  if (aligned) {
    *reinterpret_cast<std::uint32_t*>(to) = both;
  } else {
    to[0].bits = static_cast<std::uint16_t>(both);
    to[1].bits = static_cast<std::uint16_t>(both >> 16);
  }
}
// A thread's elements of a row of fragments, times a factor: the low or the high half of each.
template <class T, int D>
__device__ void store_row(T* row, const float (&sums)[D / 8][4], int half, float factor, int head_dim, bool aligned) {
  row += threadIdx.x % 4 * 2;
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    if (n * 8 < head_dim) {
      store_pair(row + n * 8, aligned, sums[n][2 * half] * factor, sums[n][2 * half + 1] * factor);
    }
  }
}

// The same of a row that begins at a multiple of 16 bytes: four threads share it, and exchange what they have so that each writes
// 16 bytes at a time. All threads of a warp call it.
template <class T, int D>
__device__ void store_aligned_row(T* row, const float (&sums)[D / 8][4], int half, float factor, int head_dim,
                                  bool exists) {
  const unsigned quarter = threadIdx.x % 4;
#pragma unroll
  for (int first = 0; first < D / 8; first += 4) {
    std::uint32_t words[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int n = first + k < D / 8 ? first + k : first;
      words[k] = pack<T>(sums[n][2 * half] * factor, sums[n][2 * half + 1] * factor);
    }
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {  // word k of thread q becomes word q of thread k
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if ((k & bit) != 0) continue;
        const bool upper = (quarter & static_cast<unsigned>(bit)) != 0;
        const std::uint32_t other = __shfl_xor_sync(whole_warp, upper ? words[k] : words[k | bit], bit);
        (upper ? words[k] : words[k | bit]) = other;
      }
    }
    const int column = (first + static_cast<int>(quarter)) * 8;
    if (exists && column < head_dim) {
      *reinterpret_cast<uint4*>(row + column) = uint4{words[0], words[1], words[2], words[3]};
    }
  }
}

// What packed sequences leave over becomes zeros: places before the first offset and from the last on.
// `lse`, where there is one, becomes -inf.
template <class T>
__device__ __noinline__ void clear_uncovered(const Plan& plan, const Vectors& vectors, std::int64_t first_head,
                                             std::int64_t heads, const Integers& offsets, std::int64_t places,
                                             float* lse) {
  if (vectors.data == nullptr) return;
  const std::int64_t begin = clamp_to(integer(offsets, 0), 0, places);
  const std::int64_t end = clamp_to(integer(offsets, plan.batch), begin, places);
  const std::int64_t count = (begin + places - end) * heads * plan.head_dim;
  for (std::int64_t k = threadIdx.x; k < count; k += blockDim.x) {
    const std::int64_t d = k % plan.head_dim;
    const std::int64_t head = first_head + k / plan.head_dim % heads;
    std::int64_t n = k / plan.head_dim / heads;
    if (n >= begin) n += end - begin;
    static_cast<T*>(vectors.data)[offset_of(vectors, 0, head, n) + d] = T{};
    if (lse != nullptr && d == 0) lse[head * plan.lse_head + n] = minus_infinity();
  }
}

// New keys and values into the cache, behind what it holds; nobody here reads them there, but that the copy engine may take some
// along in the cache's last tile, which nobody sees.
// So many threads of `split` blocks share the work. Apart, for the others not to be made slower by it.
template <class T>
__device__ __noinline__ void append_to(const Plan& plan, std::int64_t sequence, std::int64_t cached, int kv_head,
                                       int rank, int split, int threads) {
  const Segment& cache = plan.segments[0];
  const Segment& fresh = plan.segments[1];
  const auto head_dim = static_cast<unsigned>(plan.head_dim);
  for (std::int64_t n = rank; n < fresh.count; n += split) {
    const std::int64_t place = cached + n;
    for (unsigned d = threadIdx.x; d < head_dim; d += static_cast<unsigned>(threads)) {
      static_cast<T*>(cache.keys.data)[offset_of(cache.keys, sequence, kv_head, place) + d] =
          static_cast<const T*>(fresh.keys.data)[offset_of(fresh.keys, sequence, kv_head, n) + d];
      static_cast<T*>(cache.values.data)[offset_of(cache.values, sequence, kv_head, place) + d] =
          static_cast<const T*>(fresh.values.data)[offset_of(fresh.values, sequence, kv_head, n) + d];
    }
  }
}
template <class T>
__device__ void append(const Plan& plan, const Rows& rows, int rank, int split, int threads) {
  append_to<T>(plan, rows.s.number, rows.s.cached, rows.kv_head, rank, split, threads);
}

// The rows of a block. False: there are none; then it has cleared what of `written` no sequence has.
template <class T>
__device__ bool set_rows(const Plan& plan, const Units& units, const Vectors& written, float* lse, int block_rows,
                         Rows& rows) {
  rows.group = units.group;
  rows.by_group = units.by_group;
  const Unit unit =
      unit_of(plan, units, block_rows, [group = units.group](const Sequence& s) { return s.queries * group; });
  rows.rank = unit.rank;
  rows.kv_head = unit.kv_head;
  if (unit.sequence < 0) {
    clear_uncovered<T>(plan, written, static_cast<std::int64_t>(rows.kv_head) * rows.group, rows.group,
                       plan.query_offsets, plan.queries, lse);
    return false;
  }
  rows.s = sequence_of(plan, unit.sequence);
  rows.first = unit.tile * block_rows;
  rows.count = static_cast<int>(rows.s.queries) * rows.group;
  return true;
}

}  // namespace
}  // namespace robocache::attention_op
