// Tail rows of an sm90 block: up to 8 rows behind those of its warpgroups, for which 64 more rows would be mostly padding.
// The three warps that would idle beside the producer warp compute them, each with every third tile of keys. Their products
// are transposed, keys times queries: 16 keys and all 8 rows fill one mma.sync.
#pragma once

#include "gpu/mma.h"
#include "ops/attention/cuda/epilogue.h"
#include "ops/attention/cuda/forward_sm90/pipeline.h"
#include "ops/attention/cuda/mask.h"

namespace robocache::attention_op {
namespace {

// Accumulators of a thread: rows 2 * (lane % 4) and the next one; of each 16 columns lane / 4 and lane / 4 + 8.
template <int D>
struct TailAccumulators {
  float out[D / 16][4] = {};
  float row_max[2], row_sum[2] = {0, 0};  // in units of log2; the sum is of this thread's keys only

  __device__ TailAccumulators() { row_max[0] = row_max[1] = minus_infinity(); }
};

// The mask of the tail rows against one tile of keys after the other.
template <int keys>
struct TailMask {
  static constexpr int words = keys / warp_size;
  QueryMask queries[2];                           // of this thread's rows
  int all_visible_from = 0, all_visible_end = 0;  // keys that all rows see by their position
  std::int32_t lowest_rank = most_rank;           // of the tail rows
  std::int32_t highest_rank = most_rank;          // of all rows of the block
  KeyMask next[words];                            // of the next tile's keys lane, lane + 32 ...

  __device__ void load_queries(const Plan& plan, const Rows& rows, int first_row, int end) {
    all_visible_end = end;
    highest_rank = highest_query_rank(plan, rows, first_row + tail_rows);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int row = first_row + static_cast<int>(threadIdx.x % 4) * 2 + k;
      queries[k] = query_mask(plan, rows, row);
      queries[k].end = min(queries[k].end, end);
      if (!rows.exists(row)) continue;
      all_visible_from = max(all_visible_from, queries[k].first);
      all_visible_end = min(all_visible_end, queries[k].end);
    }
    all_visible_from = __reduce_max_sync(whole_warp, all_visible_from);
    all_visible_end = __reduce_min_sync(whole_warp, all_visible_end);
    lowest_rank = __reduce_min_sync(whole_warp, min(queries[0].rank, queries[1].rank));
  }
  // Hides masked scores of the tile whose keys were prefetched last. True: the tile has fully masked keys, so the consumers
  // zero their values, and this warp must wait for that.
  __device__ bool apply(float (&scores)[keys / 16][4], int first, int keys_end) const {
    std::int32_t current[words];
    bool all = first >= all_visible_from && first + keys <= all_visible_end;
    bool fully_masked = false;
#pragma unroll
    for (int k = 0; k < words; ++k) {
      current[k] = next[k].rank_or_hidden();
      all = all && current[k] <= lowest_rank;
      fully_masked =
          fully_masked || is_fully_masked(current[k], highest_rank,
                                          first + static_cast<int>(threadIdx.x % warp_size) + k * warp_size, keys_end);
    }
    if (!__all_sync(whole_warp, all)) {
#pragma unroll
      for (int n = 0; n < keys / 8; ++n) {
        const int column = n * 8 + static_cast<int>(threadIdx.x % warp_size) / 4;
        const std::int32_t key = __shfl_sync(whole_warp, current[n / 4], column % warp_size);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          if (!sees(queries[k], key, first + column)) scores[n / 2][n % 2 * 2 + k] = minus_infinity();
        }
      }
    }
    return __any_sync(whole_warp, fully_masked);
  }
};

// Online softmax: turns scores, -inf where a key is masked, into weights, and rescales the accumulators to the new row maximum.
template <int D, int count>
__device__ void tail_online_softmax(float (&scores)[count][4], TailAccumulators<D>& acc, float scale) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float now = fmaxf(scores[0][row], scores[0][row + 2]);
#pragma unroll
    for (int n = 1; n < count; ++n) now = fmaxf(now, fmaxf(scores[n][row], scores[n][row + 2]));
#pragma unroll
    for (int step = 4; step < warp_size; step *= 2) now = fmaxf(now, __shfl_xor_sync(whole_warp, now, step));
    now = fmaxf(acc.row_max[row], now * scale);
    const float base = now == minus_infinity() ? 0.0f : now;
    const float factor = exp2_approx(acc.row_max[row] - base);
    acc.row_max[row] = now;
    float sum[2] = {acc.row_sum[row] * factor, 0};
#pragma unroll
    for (int n = 0; n < count; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& score = scores[n][2 * half + row];
        score = exp2_approx(fmaf(score, scale, -base));
        sum[half] += score;
      }
    }
    acc.row_sum[row] = sum[0] + sum[1];
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
#pragma unroll
      for (int half = 0; half < 2; ++half) acc.out[d][2 * half + row] *= factor;
    }
  }
}

// scores = keys queries^T. queries: B fragments of 32 columns each.
template <class T, int D, int keys>
__device__ void tail_scores(float (&scores)[keys / 16][4], std::uint32_t (&queries)[(D + 31) / 32][4],
                            const LdmatrixTile<D>& key_tile) {
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
#pragma unroll
    for (int n = 0; n < keys / 16; ++n) {
      std::uint32_t a[4];
      ldmatrix_x4(a, key_tile.operand_a(n * 16, d * 16));
      mma_m16n8k16<T>(scores[n], a, queries[d / 2][d % 2 * 2], queries[d / 2][d % 2 * 2 + 1]);
    }
  }
}
// out += values^T weights.
template <class T, int D, int keys>
__device__ void tail_output(TailAccumulators<D>& acc, float (&weights)[keys / 16][4],
                            const LdmatrixTile<D>& value_tile) {
#pragma unroll
  for (int n = 0; n < keys / 16; ++n) {
    const std::uint32_t b[2] = {movmatrix_trans(pack<T>(weights[n][0], weights[n][1])),
                                movmatrix_trans(pack<T>(weights[n][2], weights[n][3]))};
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      std::uint32_t a[4];
      ldmatrix_x4_trans(a, value_tile.operand_b(n * 16, d * 16));
      mma_m16n8k16<T>(acc.out[d], a, b[0], b[1]);
    }
  }
}

template <class T, int D, bool masked, int keys>
__device__ void tail_mainloop(const ForwardCall& call, const Rows& rows, const KeyValuePipeline<D, keys>& pipeline,
                              const QueryTile<D>& queries, int first_row, int key_slice, int begin, int end,
                              TailAccumulators<D>& acc) {
  const Plan& plan = call.plan;
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const int step = tail_warps * keys;
  const float scale = static_cast<float>(plan.scale) * log2_e;
  int first = begin + key_slice * keys;
  TailMask<keys> mask;
  if constexpr (masked) {
    prefetch_keys(mask.next, plan, rows.s, first, end);
    mask.load_queries(plan, rows, first_row, end);
  }
  std::uint32_t query_fragments[(D + 31) / 32][4];
  pipeline.queries_full().wait(0);
#pragma unroll
  for (int d = 0; d < (D + 31) / 32; ++d) {
    ldmatrix_x4(query_fragments[d], queries.address(first_row + lane % 8, d * 32 + lane / 8 * 8));
  }
  const auto release = [&](const PipelineState& of, bool values) { pipeline.empty(of.stage, values).arrive(); };
  PipelineState pipe_read;
  pipe_read.advance(key_slice, pipeline.stages);
#pragma unroll 1
  for (; first < end; first += step, pipe_read.advance(tail_warps, pipeline.stages)) {
    pipeline.full(pipe_read.stage, false).wait(pipe_read.phase);
    float scores[keys / 16][4] = {};
    tail_scores<T, D, keys>(scores, query_fragments, LdmatrixTile<D>(pipeline.tile(pipe_read.stage, false).base));
    release(pipe_read, false);
    bool wait_for_zeros = false;
    if constexpr (masked) {
      wait_for_zeros = mask.apply(scores, first, static_cast<int>(rows.s.keys));
      prefetch_keys(mask.next, plan, rows.s, first + step, end);
    } else if (first + keys > end) {
#pragma unroll
      for (int n = 0; n < keys / 16; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (first + n * 16 + k / 2 * 8 + lane / 4 >= end) scores[n][k] = minus_infinity();
        }
      }
    }
    tail_online_softmax(scores, acc, scale);
    pipeline.full(pipe_read.stage, true).wait(pipe_read.phase);
    if (wait_for_zeros) {
      named_barrier_sync(barrier_id(NamedBarrier::values_zeroed, pipe_read.stage), values_zeroed_warps(call.row_warps));
    }
    tail_output<T, D, keys>(acc, scores, LdmatrixTile<D>(pipeline.tile(pipe_read.stage, true).base));
    release(pipe_read, true);
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
#pragma unroll
    for (int step_of = 4; step_of < warp_size; step_of *= 2) {
      acc.row_sum[row] += __shfl_xor_sync(whole_warp, acc.row_sum[row], step_of);
    }
  }
}

// Mainloop and epilogue of the tail rows, by warp `key_slice` of tail_warps.
template <class T, int D, bool masked, int keys>
__device__ void attend_tail_rows(const ForwardCall& call, const Rows& rows, const KeyValuePipeline<D, keys>& pipeline,
                                 const QueryTile<D>& queries, std::uint32_t memory, const SharedLayout& layout,
                                 int key_slice, int begin, int end) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const int consumer_warps = call.row_warps * call.key_warps;
  const int first_row = call.row_warps * warp_rows;
  TailAccumulators<D> acc;
  wait_on_dependent_grids();
  tail_mainloop<T, D, masked>(call, rows, pipeline, queries, first_row, key_slice, begin, end, acc);
  const SplitPartials<D> partials(memory + layout.tail_partials(), memory + layout.tail_statistics(), first_row,
                                  tail_rows);
  const std::uint32_t handed_over = partials.output + tail_rows * partials.pitch;
  const int step = partial_bytes(D / 16);
  if (key_slice > 0) write_partial(handed_over + (key_slice - 1) * step, acc.out, acc.row_max, acc.row_sum);
  Mbarrier{memory + layout.stages_free()}.arrive();
  named_barrier_sync(barrier_id(NamedBarrier::tail_rows), tail_warps);
  if (key_slice == 0) {
#pragma unroll 1
    for (int other = 0; other < tail_warps - 1; ++other) {
      add_partial<true>(handed_over + other * step, acc.out, acc.row_max, acc.row_sum);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int place = lane % 4 * 2 + row;
      if (lane < 4) st_shared(partials.statistics + place * 8, acc.row_max[row], acc.row_sum[row]);
#pragma unroll
      for (int k = 0; k < D / 8; ++k) {
        st_shared(partials.output + place * partials.pitch + (k * 8 + lane / 4) * 4, acc.out[k / 2][k % 2 * 2 + row]);
      }
    }
  }
  cluster_sync();
  reduce_over_cluster<T>(call, rows, partials, static_cast<int>(threadIdx.x) - (consumer_warps + 1) * warp_size,
                         tail_warps * warp_size);
  leave_cluster();
}

}  // namespace
}  // namespace robocache::attention_op
