// How a call is cut into blocks, and the launches for each dtype.
#pragma once

#include <cuda.h>

#include "core/cuda.h"
#include "ops/attention/plan.h"
#include "ops/attention/tuning.h"

namespace robocache::attention_op {

inline constexpr int warp_rows = 16;  // what the tensor cores take at a time
inline constexpr int warp_size = 32;

// Rows of a block beyond those of its warpgroups, and the warps that share their keys (cuda_narrow.h).
inline constexpr int narrow_rows = 8;
inline constexpr int narrow_warps = 3;

// Tiles of `count` things of a sequence; packed: of all of them, at most, and one more, which clears what no sequence has.
inline std::int64_t tiles_of(const Plan& plan, std::int64_t count, int size) {
  return plan.is_packed() ? count / size + plan.batch + 1 : divide_up(count, size);
}
// Of rows: queries times the heads that share a key head. A call that appends has one at least.
inline std::int64_t row_tiles(const Plan& plan, int size) {
  const std::int64_t tiles = tiles_of(plan, plan.queries * plan.group(), size);
  return plan.append && tiles == 0 ? 1 : tiles;
}
// Blocks: each has a tile of a key head.
inline std::int64_t units_of(const Plan& plan, std::int64_t tiles) { return tiles * plan.kv_heads * plan.arrays(); }

enum class Masking : std::uint8_t {
  none,
  simple,   // which keys no row of a block sees can be told from ranks and flags alone
  general,  // a dense mask, or ranks and a window: each warp finds out by itself
};
Masking masking_of(const Plan& plan);

struct Cut {
  int row_warps = 1;  // of a block, each with warp_rows,
  int key_warps = 1;  // times those with the same rows and other keys
  int split = 1;      // blocks with the same rows and other keys: a cluster
  int stages = 1;
  bool wide = false;        // warpgroups multiply, of 64 rows each: Hopper
  bool long_tiles = false;  // of tuning::long_keys
  bool narrow = false;      // narrow_rows more
  std::int64_t tiles = 1;   // row_tiles

  int rows() const { return row_warps * warp_rows + (narrow ? narrow_rows : 0); }
  // Of a warp and stage.
  int keys(int head_dim) const { return long_tiles ? tuning::long_keys : tuning::keys(head_dim, wide); }
};
// How the copy engine finds what a call reads.
struct EngineMaps {
  CUtensorMap maps[max_attention_segments][2];  // keys and values of each segment
  CUtensorMap query_map;
  bool engine = false;          // it copies keys and values,
  bool engine_queries = false;  // and queries
};
Cut cut_of(const Plan& plan, int device, EngineMaps& maps);

// How many clusters of so many blocks run at once where a processor has room for one block: processors come in groups, and a
// cluster must find room in one.
int most_clusters(int device, int split);

// Head dims that kernels are compiled for; others are filled up with zeros.
int padded_head_dim(std::int64_t head_dim);

// Floats between rows of sums in shared memory: rows of a fragment lie in different banks.
constexpr int sum_pitch(int head_dim) { return head_dim + 8; }
// Bytes that a warp hands over to another one: 16 from each lane for each of so many places, and 16 of statistics.
constexpr int handed_bytes(int places) { return (places + 1) * warp_size * 16; }

// Shared memory of a block: stages of keys and values, then its queries; when these are used up, the sums that are merged;
// then the maximum and the total of each row, and what counts arrivals.
struct Memory {
  int stages, queries, sums, sum_rows;
  int narrow_sums_bytes = 0, narrow_bytes = 0;

  constexpr Memory(int head_dim, bool wide, int row_warps, int key_warps, int stage_count, int split)
      : Memory(head_dim, wide, row_warps, key_warps, stage_count, split, tuning::keys(head_dim, wide)) {}
  constexpr Memory(int head_dim, bool wide, int row_warps, int key_warps, int stage_count, int split, int keys,
                   bool narrow = false)
      : stages(2 * stage_count * (wide ? 1 : key_warps) * keys * column_blocks(head_dim) * 128),
        queries(row_warps * warp_rows * (wide ? column_blocks(head_dim) * 128 : row_bytes(head_dim))),
        sums(key_warps * row_warps * warp_rows * sum_pitch(head_dim) * 4),
        sum_rows(row_warps * warp_rows) {
    if (narrow) {
      queries += narrow_rows * column_blocks(head_dim) * 128;
      narrow_sums_bytes = narrow_rows * sum_pitch(head_dim) * 4 + (narrow_warps - 1) * handed_bytes(head_dim / 16);
      narrow_bytes = narrow_sums_bytes + narrow_rows * 8;
    }
    if (!exchanges(head_dim, wide, split)) return;
    // Where the stages were a block leaves what it summed, and where its queries were it gets what others did.
    const int strip = row_warps * warp_rows * 8 * 4;  // bytes of eight columns
    const int strips = head_dim / 8;
    stages = stages > strips * strip ? stages : strips * strip;
    const int come = (split - 1) * ((strips + split - 1) / split) * strip;
    queries = queries > come ? queries : come;
    sums = 0;
    sum_rows *= split;
  }
  // Whether blocks that share rows send each other what they summed (cuda_exchange.h), or else each reads it where it lies.
  static constexpr bool exchanges(int head_dim, bool wide, int split) {
    return wide && split > 1 && tuning::exchanges(head_dim);
  }

  // Where the statistics of those sums lie, then the sums of narrow rows and their statistics, and the arrivals.
  constexpr int statistics() const { return stages + queries > sums ? stages + queries : sums; }
  constexpr int narrow_sums() const { return statistics() + sum_rows * 8; }
  constexpr int narrow_statistics() const { return narrow_sums() + narrow_sums_bytes; }
  constexpr int arrivals() const { return narrow_sums() + narrow_bytes; }
  constexpr int bytes() const { return arrivals() + arrival_bytes; }

  // One for each 16 rows: shares of keys are handed over there. And one for all that use the stages, where there are narrow rows.
  // Where the arrivals of an exchange would be: no block has both.
  constexpr int handed() const { return exchange_arrivals(); }
  constexpr int used() const { return exchange_arrivals() + most_parcels * 8; }
  constexpr int exchange_arrivals() const { return arrivals() + (4 * tuning::most_stages + 1) * 8; }

  static constexpr int most_parcels = 15;  // that come to a block
  static constexpr int arrival_bytes = (4 * tuning::most_stages + 1 + 1 + most_parcels) * 8;
  // Of a row of queries: 16 bytes more, so that eight rows of a matrix lie in different banks.
  static constexpr int row_bytes(int head_dim) { return head_dim * 2 + 16; }
  // Of 64 columns each, which is what the copy engine takes at a time.
  static constexpr int column_blocks(int head_dim) { return (head_dim + 63) / 64; }
  // Of a tile of keys or values for warpgroups: one, where the last block is full, too.
  static constexpr int tile_copies(std::int64_t head_dim) {
    return head_dim % 64 == 0 ? 1 : column_blocks(static_cast<int>(head_dim));
  }
};

// Calls f(std::integral_constant<int, padded>{}).
template <class F>
void with_head_dim(std::int64_t head_dim, const F& f) {
  switch (padded_head_dim(head_dim)) {
    case 32:
      return f(std::integral_constant<int, 32>{});
    case 48:
      return f(std::integral_constant<int, 48>{});
    case 64:
      return f(std::integral_constant<int, 64>{});
    case 80:
      return f(std::integral_constant<int, 80>{});
    case 96:
      return f(std::integral_constant<int, 96>{});
    case 128:
      return f(std::integral_constant<int, 128>{});
    case 192:
      return f(std::integral_constant<int, 192>{});
    default:
      return f(std::integral_constant<int, 256>{});
  }
}

void run_bf16(const Plan& plan, FaultBox* box, int device, cudaStream_t stream);
void run_f16(const Plan& plan, FaultBox* box, int device, cudaStream_t stream);
void run_f32(const Plan& plan, FaultBox* box, int device, cudaStream_t stream);

// What a backward pass leaves for its later kernels.
struct BackwardScratch {
  float* delta = nullptr;  // for each query and head, as lse
  // Where key_split blocks share the rows that see a tile of keys: what each has summed up, of d_keys, then of d_values.
  float* partials = nullptr;
  int key_split = 1;
};
void run_backward_bf16(const BackwardPlan& plan, const BackwardScratch& scratch, FaultBox* box, int device,
                       cudaStream_t stream);
void run_backward_f16(const BackwardPlan& plan, const BackwardScratch& scratch, FaultBox* box, int device,
                      cudaStream_t stream);
void run_backward_f32(const BackwardPlan& plan, const BackwardScratch& scratch, FaultBox* box, int device,
                      cudaStream_t stream);

// Lets a kernel have as much shared memory as there is, and clusters of 16.
inline void permit(const void* kernel, int device) {
  const CudaMachine& machine = cuda_machine(device);
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, machine.shared_bytes),
             "asking for shared memory");
  if (machine.major >= 9) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "asking for clusters");
  }
}

// Launches a kernel over a grid that one launch can hold.
template <auto kernel, class Call>
void launch(std::int64_t blocks, int threads, int shared_bytes, Call& call, int device, cudaStream_t stream,
            int cluster = 1) {
  static OncePerDevice once;
  if (blocks == 0) return;
  if (blocks >= std::int64_t{1} << 31) throw Error(ErrorKind::value, "attention: too many queries for one launch");
  const auto* const address = reinterpret_cast<const void*>(kernel);
  once(device, [&] { permit(address, device); });
  cuda_launch(address, blocks, threads, static_cast<std::size_t>(shared_bytes), &call, device, stream, "attention",
              cluster);
}

// Whether 16 bytes can be read at a time.
inline bool is_aligned(const Vectors& vectors, std::int64_t batch) {
  constexpr std::int64_t elements = 8;
  return vectors.data == nullptr ||
         (reinterpret_cast<std::uintptr_t>(vectors.data) % 16 == 0 && vectors.head % elements == 0 &&
          vectors.row % elements == 0 && (batch <= 1 || vectors.batch % elements == 0));
}
inline bool is_aligned(const Plan& plan) {
  bool aligned = is_aligned(plan.q, plan.batch);
  for (int k = 0; k < plan.segment_count; ++k) {
    aligned =
        aligned && is_aligned(plan.segments[k].keys, plan.batch) && is_aligned(plan.segments[k].values, plan.batch);
  }
  return aligned;
}

}  // namespace robocache::attention_op
