// The few rows behind those of a block's warpgroups, for which 64 more would be mostly empty: by the three warps that stand
// idle beside the one that fetches. Each has every third tile of keys. Products are the other way round, keys times rows, 16
// keys and all eight rows at a time: of what the tensor cores multiply nothing is empty.
#pragma once

#include "ops/attention/cuda_ring.h"
#include "ops/attention/cuda_sums.h"

namespace robocache::attention_op {
namespace {

// What a thread holds of the rows 2 * (lane % 4) and the next: of each 16 columns, lane / 4 and lane / 4 + 8.
template <int D>
struct NarrowSums {
  float out[D / 16][4] = {};
  float most[2], total[2] = {0, 0};  // in units of log2; the total is of this thread's keys only

  __device__ NarrowSums() { most[0] = most[1] = minus_infinity(); }
};

// Two elements of each row of an 8 x 8 matrix into two of each column.
__device__ std::uint32_t transpose(std::uint32_t x) {
  std::uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// What of the keys that it is at a warp's rows see.
template <int keys>
struct NarrowSight {
  static constexpr int words = keys / warp_size;
  QueryView views[2];              // of this thread's rows
  int all_from = 0, all_to = 0;    // keys that all rows see by their position,
  std::int32_t least = most_rank;  // and by their rank
  std::int32_t most = most_rank;   // the most that any row of the block has
  KeyView next[words];             // of keys lane, lane + 32

  __device__ void set(const Plan& plan, const Rows& rows, int first_row, int end) {
    all_to = end;
    most = most_rank_of(plan, rows, first_row + narrow_rows);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int row = first_row + static_cast<int>(threadIdx.x % 4) * 2 + k;
      views[k] = query_view(plan, rows, row);
      views[k].end = min(views[k].end, end);
      if (!rows.exists(row)) continue;
      all_from = max(all_from, views[k].first);
      all_to = min(all_to, views[k].end);
    }
    all_from = __reduce_max_sync(whole_warp, all_from);
    all_to = __reduce_min_sync(whole_warp, all_to);
    least = __reduce_min_sync(whole_warp, min(views[0].rank, views[1].rank));
  }
  // Asks for what keys are like.
  __device__ void look_at(const Plan& plan, const Sequence& s, int first, int end) {
#pragma unroll
    for (int k = 0; k < words; ++k) {
      next[k] = KeyView(plan, s, first + static_cast<int>(threadIdx.x % warp_size) + k * warp_size, end);
    }
  }
  // Of those that were asked for last. True: no row of the block sees some of them that are before `end`, and so others clear
  // their values, as Sight::find_unseen() tells them by the same rule: whoever waits for that waits for ever where they differ.
  __device__ bool hide(float (&scores)[keys / 16][4], int first, int end) const {
    std::int32_t here[words];
    bool all = first >= all_from && first + keys <= all_to;
    bool unseen = false;
#pragma unroll
    for (int k = 0; k < words; ++k) {
      here[k] = next[k].view();
      all = all && here[k] <= least;
      unseen = unseen || (here[k] > most && first + static_cast<int>(threadIdx.x % warp_size) + k * warp_size < end);
    }
    if (!__all_sync(whole_warp, all)) {
#pragma unroll
      for (int n = 0; n < keys / 8; ++n) {
        const int column = n * 8 + static_cast<int>(threadIdx.x % warp_size) / 4;
        const std::int32_t key = __shfl_sync(whole_warp, here[n / 4], column % warp_size);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          if (!sees(views[k], key, first + column)) scores[n / 2][n % 2 * 2 + k] = minus_infinity();
        }
      }
    }
    return __any_sync(whole_warp, unseen);
  }
};

// Scores, with -inf where a key is not seen, into weights; what was summed before is scaled to the new greatest score.
template <int D, int count>
__device__ void soften_narrow(float (&scores)[count][4], NarrowSums<D>& sums, float scale) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float now = fmaxf(scores[0][row], scores[0][row + 2]);
#pragma unroll
    for (int n = 1; n < count; ++n) now = fmaxf(now, fmaxf(scores[n][row], scores[n][row + 2]));
#pragma unroll
    for (int step = 4; step < warp_size; step *= 2) now = fmaxf(now, __shfl_xor_sync(whole_warp, now, step));
    now = fmaxf(sums.most[row], now * scale);
    const float base = now == minus_infinity() ? 0.0f : now;
    const float factor = power_of_two(sums.most[row] - base);
    sums.most[row] = now;
    float total[2] = {sums.total[row] * factor, 0};
#pragma unroll
    for (int n = 0; n < count; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& score = scores[n][2 * half + row];
        score = power_of_two(fmaf(score, scale, -base));
        total[half] += score;
      }
    }
    sums.total[row] = total[0] + total[1];
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
#pragma unroll
      for (int half = 0; half < 2; ++half) sums.out[d][2 * half + row] *= factor;
    }
  }
}

template <class T, int D, bool masked, int keys>
__device__ void sum_keys_narrow(const Call& call, const Rows& rows, const Ring<D, keys>& ring,
                                const WideTile<D>& queries, int first_row, int share, int begin, int end,
                                NarrowSums<D>& sums) {
  const Plan& plan = call.plan;
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const int step = narrow_warps * keys;
  const float scale = static_cast<float>(plan.scale) * log2_e;
  int first = begin + share * keys;
  NarrowSight<keys> sight;
  if constexpr (masked) {
    sight.look_at(plan, rows.s, first, end);
    sight.set(plan, rows, first_row, end);
  }
  // Of 32 columns each.
  std::uint32_t left[(D + 31) / 32][4];
  ring.queries().wait(0);
#pragma unroll
  for (int d = 0; d < (D + 31) / 32; ++d) {
    load_matrices(left[d], queries.place(first_row + lane % 8, d * 32 + lane / 8 * 8));
  }
  const auto release = [&](const Turn& of, bool values) { ring.empty(of.stage, values).arrive(); };
  Turn turn;
  turn.forward(share, ring.stages);
#pragma unroll 1
  for (; first < end; first += step, turn.forward(narrow_warps, ring.stages)) {
    ring.full(turn.stage, false).wait(turn.parity);
    float scores[keys / 16][4] = {};
    const WarpTile<D> key_tile(ring.tile(turn.stage, false).base);
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
#pragma unroll
      for (int n = 0; n < keys / 16; ++n) {
        std::uint32_t right[4];
        load_matrices(right, key_tile.left(n * 16, d * 16));
        multiply<T>(scores[n], right, left[d / 2][d % 2 * 2], left[d / 2][d % 2 * 2 + 1]);
      }
    }
    release(turn, false);
    bool wait_for_zeros = false;
    if constexpr (masked) {
      wait_for_zeros = sight.hide(scores, first, static_cast<int>(rows.s.keys));
      sight.look_at(plan, rows.s, first + step, end);
    } else if (first + keys > end) {
#pragma unroll
      for (int n = 0; n < keys / 16; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (first + n * 16 + k / 2 * 8 + lane / 4 >= end) scores[n][k] = minus_infinity();
        }
      }
    }
    soften_narrow(scores, sums, scale);
    ring.full(turn.stage, true).wait(turn.parity);
    if (wait_for_zeros) wait_for_warps(stage_barrier + turn.stage, call.row_warps + 1);
    const WarpTile<D> value_tile(ring.tile(turn.stage, true).base);
#pragma unroll
    for (int n = 0; n < keys / 16; ++n) {
      const std::uint32_t weights[2] = {transpose(pack<T>(scores[n][0], scores[n][1])),
                                        transpose(pack<T>(scores[n][2], scores[n][3]))};
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        std::uint32_t right[4];
        load_transposed(right, value_tile.right(n * 16, d * 16));
        multiply<T>(sums.out[d], right, weights[0], weights[1]);
      }
    }
    release(turn, true);
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
#pragma unroll
    for (int step_of = 4; step_of < warp_size; step_of *= 2) {
      sums.total[row] += __shfl_xor_sync(whole_warp, sums.total[row], step_of);
    }
  }
}

// All of it, from the first key to what is stored; by warp `share` of narrow_warps.
template <class T, int D, bool masked, int keys>
__device__ void attend_narrow(const Call& call, const Rows& rows, const Ring<D, keys>& ring, const WideTile<D>& queries,
                              std::uint32_t memory, const Memory& layout, int share, int begin, int end) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const int summing = call.row_warps * call.key_warps;
  const int first_row = call.row_warps * warp_rows;
  NarrowSums<D> sums;
  after_earlier_work();
  sum_keys_narrow<T, D, masked>(call, rows, ring, queries, first_row, share, begin, end, sums);
  const LeftSums<D> left(memory + layout.narrow_sums(), memory + layout.narrow_statistics(), first_row, narrow_rows);
  const std::uint32_t here = left.sums + narrow_rows * left.pitch;
  const int step = handed_bytes(D / 16);
  if (share > 0) leave_for_lane(here + (share - 1) * step, sums.out, sums.most, sums.total);
  Arrivals{memory + layout.used()}.arrive();
  wait_for_warps(narrow_barrier, narrow_warps);
  if (share == 0) {
#pragma unroll 1
    for (int other = 0; other < narrow_warps - 1; ++other) {
      add_for_lane<true>(here + other * step, sums.out, sums.most, sums.total);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int place = lane % 4 * 2 + row;
      if (lane < 4) write_shared(left.statistics + place * 8, sums.most[row], sums.total[row]);
#pragma unroll
      for (int k = 0; k < D / 8; ++k) {
        write_shared(left.sums + place * left.pitch + (k * 8 + lane / 4) * 4, sums.out[k / 2][k % 2 * 2 + row]);
      }
    }
  }
  wait_for_cluster();
  merge<T>(call, rows, left, static_cast<int>(threadIdx.x) - (summing + 1) * warp_size, narrow_warps * warp_size);
  leave_cluster();
}

}  // namespace
}  // namespace robocache::attention_op
