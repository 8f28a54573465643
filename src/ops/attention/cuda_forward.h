// Attention of half types on the tensor cores.
//
// A block has up to 128 rows (16 a warp) and a run of chunks of keys, several of which are under way at once. Blocks of a
// cluster share rows and split the keys; each leaves its sums in shared memory, and each merges the sums of its part of the
// rows, always in the order of the blocks. So there is one launch, no scratch, and the same bits every time.
#pragma once

#include <cooperative_groups.h>

#include "ops/attention/cuda_call.h"
#include "ops/attention/cuda_tiles.h"
#include "ops/attention/tuning.h"

namespace robocache::attention_op {
namespace {

struct Call {
  Plan plan;
  FaultBox* box = nullptr;
  int tiles = 0;         // of rows, in a sequence; packed: in all, at most
  int split = 1;         // blocks of a cluster
  bool aligned = false;  // every row of queries, keys and values begins at a multiple of 16 bytes
};

// Shared memory of a block: its queries, then the chunks (and, when these are used up, the sums that are merged), then the
// maximum and the sum of exponentials of each row.
template <int D>
struct Layout {
  static constexpr int stages = tuning::stages(D);
  static constexpr int stage_bytes = 2 * tuning::chunk * Tile<D>::pitch;
  static constexpr int sum_pitch = D + 8;  // floats; rows of a fragment lie in different banks
  static_assert(tuning::max_warps * warp_rows * sum_pitch * 4 <= stages * stage_bytes);

  static constexpr int queries(int rows) { return rows * Tile<D>::pitch; }
  static constexpr int statistics(int rows) { return queries(rows) + stages * stage_bytes; }
  static constexpr int bytes(int rows) { return statistics(rows) + rows * 8; }
};

// What a thread holds of its warp's 16 rows: rows lane / 4 and lane / 4 + 8.
template <int D>
struct Sums {
  float out[D / 8][4] = {};
  float most[2], total[2] = {0, 0};  // the total is of this thread's columns only

  __device__ Sums() { most[0] = most[1] = minus_infinity(); }
};

// Scores in units of log2, with -inf where a key is not seen, into weights; what was summed before is scaled to the new
// maximum, always, whether it changed or not.
template <class T, int D>
__device__ void soften(float (&scores)[tuning::chunk / 8][4], Sums<D>& sums) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = sums.most[half];
#pragma unroll
    for (int n = 0; n < tuning::chunk / 8; ++n) {
      most = fmaxf(most, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    }
    most = fmaxf(most, __shfl_xor_sync(whole_warp, most, 1));
    most = fmaxf(most, __shfl_xor_sync(whole_warp, most, 2));
    const float base = most == minus_infinity() ? 0.0f : most;
    const float factor = power_of_two(sums.most[half] - base);
    float total = 0;
#pragma unroll
    for (int n = 0; n < tuning::chunk / 8; ++n) {
#pragma unroll
      for (int k = 2 * half; k < 2 * half + 2; ++k) {
        scores[n][k] = power_of_two(scores[n][k] - base);
        total += scores[n][k];
      }
    }
    sums.most[half] = most;
    sums.total[half] = fmaf(sums.total[half], factor, total);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      sums.out[n][2 * half] *= factor;
      sums.out[n][2 * half + 1] *= factor;
    }
  }
}

__device__ float logarithm(float most, float total) {
  return total == 0 ? minus_infinity() : fmaf(most, ln_2, logf(total));
}

template <class T, int D>
__device__ void store_own(const Plan& plan, const Rows& rows, int warp_row, const Sums<D>& sums) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp_row + lane / 4 + 8 * half;
    if (!rows.exists(row)) continue;
    const float total = sums.total[half];
    const float factor = total == 0 ? 0.0f : 1.0f / total;
    T* const to = static_cast<T*>(plan.out.data) + rows.offset(plan.out, row);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      store_pair(to, n * 8 + lane % 4 * 2, static_cast<int>(plan.head_dim), sums.out[n][2 * half] * factor, sums.out[n][2 * half + 1] * factor);
    }
    if (plan.lse != nullptr && lane % 4 == 0) {
      plan.lse[rows.lse_offset(plan, row)] = logarithm(sums.most[half], total);
    }
  }
}

// Every block of the cluster has left its sums; each merges every split-th row.
template <class T, int D>
__device__ void merge(const Call& call, const Rows& rows, int block_rows, unsigned char* memory,
                      const Sums<D>& sums, int warp_row) {
#if __CUDA_ARCH__ >= 900
  using L = Layout<D>;
  const auto cluster = cooperative_groups::this_cluster();
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  auto* const left = reinterpret_cast<float*>(memory + L::queries(block_rows));
  auto* const statistics = reinterpret_cast<float2*>(memory + L::statistics(block_rows));
  __syncthreads();  // the chunks have been used
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp_row + lane / 4 + 8 * half;
    if (lane % 4 == 0) statistics[row] = float2{sums.most[half], sums.total[half]};
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      *reinterpret_cast<float2*>(left + row * L::sum_pitch + n * 8 + lane % 4 * 2) =
          float2{sums.out[n][2 * half], sums.out[n][2 * half + 1]};
    }
  }
  cluster.sync();
  const Plan& plan = call.plan;
  const auto mine = static_cast<int>(cluster.block_rank());
  constexpr int quads = D / 4;
  for (int k = static_cast<int>(threadIdx.x);; k += static_cast<int>(blockDim.x)) {
    const int row = k / quads * call.split + mine;
    if (row >= block_rows || !rows.exists(row)) break;
    float most = minus_infinity();
    for (int block = 0; block < call.split; ++block) {
      most = fmaxf(most, cluster.map_shared_rank(statistics, block)[row].x);
    }
    const float base = most == minus_infinity() ? 0.0f : most;
    float total = 0;
    float4 sum{0, 0, 0, 0};
    const int column = k % quads * 4;
#pragma unroll 4
    for (int block = 0; block < call.split; ++block) {
      const float2 theirs = cluster.map_shared_rank(statistics, block)[row];
      const float4 part =
          *reinterpret_cast<const float4*>(cluster.map_shared_rank(left, block) + row * L::sum_pitch + column);
      const float factor = power_of_two(theirs.x - base);
      total = fmaf(theirs.y, factor, total);
      sum.x = fmaf(part.x, factor, sum.x);
      sum.y = fmaf(part.y, factor, sum.y);
      sum.z = fmaf(part.z, factor, sum.z);
      sum.w = fmaf(part.w, factor, sum.w);
    }
    const float factor = total == 0 ? 0.0f : 1.0f / total;
    T* const to = static_cast<T*>(plan.out.data) + rows.offset(plan.out, row);
    store_pair(to, column, static_cast<int>(plan.head_dim), sum.x * factor, sum.y * factor);
    store_pair(to, column + 2, static_cast<int>(plan.head_dim), sum.z * factor, sum.w * factor);
    if (plan.lse != nullptr && column == 0) plan.lse[rows.lse_offset(plan, row)] = logarithm(most, total);
  }
  cluster.sync();  // nobody leaves whose sums are still read
#endif
}

template <class T, int D, bool masked>
__global__ void __launch_bounds__(tuning::max_warps* warp_size) attention_kernel(const __grid_constant__ Call call) {
  using L = Layout<D>;
  constexpr int chunk = tuning::chunk;
  constexpr bool keep_queries = D <= 128;  // in registers
  extern __shared__ __align__(128) unsigned char memory[];
  const Plan& plan = call.plan;
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const int warp_row = static_cast<int>(threadIdx.x / warp_size) * warp_rows;
  const int block_rows = static_cast<int>(blockDim.x / warp_size) * warp_rows;
  const int rank = static_cast<int>(blockIdx.x % static_cast<unsigned>(call.split));
  after_earlier_work();
  let_next_begin();
  check_data(plan, call.box);
  Rows rows;
  const unsigned unit = blockIdx.x / static_cast<unsigned>(call.split);
  if (!set_rows<T>(plan, plan.out, unit, call.tiles, block_rows, rows, plan.lse)) return;  // as its whole cluster does
  const Sequence& s = rows.s;

  // The keys that any of the rows sees by its position, and this block's share of them.
  const int last_row = min(block_rows, rows.count - rows.first) - 1;
  const auto begin = static_cast<int>(keys_in_window(plan, s, rows.query(0)).first);
  const auto end = static_cast<int>(keys_in_window(plan, s, rows.query(last_row)).end);
  const int chunks = end > begin ? (end - begin + chunk - 1) / chunk : 0;
  const int chunk_begin = static_cast<int>(static_cast<std::int64_t>(chunks) * rank / call.split);
  const int chunk_end = static_cast<int>(static_cast<std::int64_t>(chunks) * (rank + 1) / call.split);

  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  const Tile<D> queries{shared};
  const auto tile_of = [&](int number, bool values) {
    return Tile<D>{shared + L::queries(block_rows) + number % L::stages * L::stage_bytes +
                   (values ? L::stage_bytes / 2 : 0)};
  };
  const auto fetch = [&](int number) {
    if (number < chunk_end) {
      const int first = begin + number * chunk;
      copy_keys<T, D>(plan, s, rows.kv_head, false, first, end, tile_of(number, false), chunk, call.aligned);
      end_group();
      copy_keys<T, D>(plan, s, rows.kv_head, true, first, end, tile_of(number, true), chunk, call.aligned);
      end_group();
    } else {
      end_group();
      end_group();
    }
  };
  Copier<D>().template copy<T>(queries, block_rows, static_cast<int>(plan.head_dim), call.aligned,
                               [&](int row) -> const T* {
                                 if (!rows.exists(row)) return nullptr;
                                 return static_cast<const T*>(plan.q.data) + rows.offset(plan.q, row);
                               });
#pragma unroll
  for (int k = 0; k < L::stages - 1; ++k) fetch(chunk_begin + k);
  // Of chunk `number`, keys lane and lane + 32.
  std::int32_t key_views[2] = {};
  const auto fetch_views = [&](int number) {
    if constexpr (masked) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        key_views[k] = key_view(plan, s, begin + number * chunk + lane + k * warp_size);
      }
    }
  };
  if (chunk_begin < chunk_end) fetch_views(chunk_begin);
  QueryView views[2];
  if constexpr (masked) {
    views[0] = query_view(plan, rows, warp_row + lane / 4);
    views[1] = query_view(plan, rows, warp_row + lane / 4 + 8);
  }

  const float scale = static_cast<float>(plan.scale) * log2_e;
  Sums<D> sums;
  std::uint32_t kept[keep_queries ? D / 16 : 1][4];
  for (int number = chunk_begin; number < chunk_end; ++number) {
    wait_for_groups<2 * L::stages - 3>();
    __syncthreads();  // its keys are there, and the chunk before has been used
    fetch(number + L::stages - 1);
    if constexpr (keep_queries) {
      if (number == chunk_begin) {
#pragma unroll
        for (int d = 0; d < D / 16; ++d) load_matrices(kept[d], queries.left(warp_row, d * 16));
      }
    }

    float scores[chunk / 8][4] = {};
    const Tile<D> keys = tile_of(number, false);
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      std::uint32_t left[4];
      if constexpr (keep_queries) {
#pragma unroll
        for (int k = 0; k < 4; ++k) left[k] = kept[d][k];
      } else {
        load_matrices(left, queries.left(warp_row, d * 16));
      }
#pragma unroll
      for (int n = 0; n < chunk / 16; ++n) {
        std::uint32_t right[4];
        load_matrices(right, keys.right(n * 16, d * 16));
        multiply<T>(scores[2 * n], left, right[0], right[1]);
        multiply<T>(scores[2 * n + 1], left, right[2], right[3]);
      }
    }

    // Of this thread's columns, which are its keys of the second product too, those that any row of the warp sees.
    std::uint32_t seen = 0xffffu;
    const int first = begin + number * chunk;
    if constexpr (masked) {
      seen = 0;
#pragma unroll
      for (int n = 0; n < chunk / 8; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int column = n * 8 + lane % 4 * 2 + k % 2;
          const std::int32_t view = __shfl_sync(whole_warp, key_views[n / 4], column % warp_size);
          const int row = warp_row + lane / 4 + k / 2 * 8;
          const bool here = sees(plan, rows, row, views[k / 2], view, first + column);
          scores[n][k] = here ? scores[n][k] * scale : minus_infinity();
          if (here) seen |= 1u << (n * 2 + k % 2);
        }
      }
#pragma unroll
      for (int step = 4; step < warp_size; step *= 2) seen |= __shfl_xor_sync(whole_warp, seen, step);
      if (number + 1 < chunk_end) fetch_views(number + 1);
    } else {
#pragma unroll
      for (int n = 0; n < chunk / 8; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) scores[n][k] *= scale;
      }
      if (first + chunk > end) {
#pragma unroll
        for (int n = 0; n < chunk / 8; ++n) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            if (first + n * 8 + lane % 4 * 2 + k % 2 >= end) scores[n][k] = minus_infinity();
          }
        }
      }
    }
    soften<T>(scores, sums);

    wait_for_groups<2 * L::stages - 2>();
    __syncthreads();  // its values are there
    const Tile<D> values = tile_of(number, true);
#pragma unroll
    for (int n = 0; n < chunk / 16; ++n) {
      const std::uint32_t weights[4] = {
          pack<T>(scores[2 * n][0], scores[2 * n][1]), pack<T>(scores[2 * n][2], scores[2 * n][3]),
          pack<T>(scores[2 * n + 1][0], scores[2 * n + 1][1]), pack<T>(scores[2 * n + 1][2], scores[2 * n + 1][3])};
      // Values of keys that nobody sees may be NaN, which a weight of zero does not stop.
      std::uint32_t real[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const std::uint32_t bits = seen >> (4 * n + 2 * k);
        real[k] = (bits & 1u ? 0xffffu : 0u) | (bits & 2u ? 0xffff0000u : 0u);
      }
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        std::uint32_t right[4];
        load_transposed(right, values.left(n * 16, d * 16));
        if constexpr (masked) {
#pragma unroll
          for (int k = 0; k < 4; ++k) right[k] &= real[k % 2];
        }
        multiply<T>(sums.out[2 * d], weights, right[0], right[1]);
        multiply<T>(sums.out[2 * d + 1], weights, right[2], right[3]);
      }
    }
  }
  wait_for_groups<0>();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sums.total[half] += __shfl_xor_sync(whole_warp, sums.total[half], 1);
    sums.total[half] += __shfl_xor_sync(whole_warp, sums.total[half], 2);
  }
  if (plan.append && rows.first == 0) append<T>(plan, rows, rank, call.split);
  if (call.split > 1) {
    merge<T>(call, rows, block_rows, memory, sums, warp_row);
  } else {
    store_own<T>(plan, rows, warp_row, sums);
  }
}

template <class T>
void run_half(const Plan& plan, FaultBox* box, int device, cudaStream_t stream) {
  const Cut cut = cut_of(plan, device);
  Call call;
  call.plan = plan;
  call.box = box;
  call.tiles = static_cast<int>(cut.tiles);
  call.split = cut.split;
  call.aligned = is_aligned(plan);
  const std::int64_t blocks = units_of(plan, cut.tiles) * cut.split;
  const int threads = cut.warps * warp_size;
  with_head_dim(plan.head_dim, [&](auto padded) {
    constexpr int D = decltype(padded)::value;
    const int bytes = Layout<D>::bytes(cut.warps * warp_rows);
    if (cut.masked) {
      launch<&attention_kernel<T, D, true>>(blocks, threads, bytes, call, device, stream, cut.split);
    } else {
      launch<&attention_kernel<T, D, false>>(blocks, threads, bytes, call, device, stream, cut.split);
    }
  });
}

}  // namespace
}  // namespace robocache::attention_op
