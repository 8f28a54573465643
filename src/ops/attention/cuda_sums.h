// What is summed for a row: the weighted values, the greatest score and the total of the weights; and how sums of the same
// rows and other keys are merged.
#pragma once

#include "ops/attention/cuda_call.h"
#include "ops/attention/cuda_tiles.h"

namespace robocache::attention_op {
namespace {

struct Call : EngineMaps {
  Plan plan;
  FaultBox* box = nullptr;
  Units units;
  int row_warps = 1, key_warps = 1;
  int stages = 1;                 // that there is shared memory for
  std::uint32_t shares[16] = {};  // of each warp along rows: of 32 things, those that it does
  bool aligned = false;           // every row of queries, keys, values and the output begins at a multiple of 16 bytes
};

// Apart, for calls without anything to check.
__device__ __noinline__ void check(const Plan& plan, FaultBox* box) { check_data(plan, box); }

// What a thread holds of its warp's 16 rows: rows lane / 4 and lane / 4 + 8.
template <int D>
struct Sums {
  float out[D / 8][4] = {};
  float most[2], total[2] = {0, 0};  // in units of log2; the total is of this thread's columns only

  __device__ Sums() { most[0] = most[1] = minus_infinity(); }

  // To a new greatest score, whether it changed or not: nothing branches on data.
  __device__ void scale_by(const float (&factors)[2]) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) out[n][k] *= factors[k / 2];
    }
  }
};

// Of scores, with -inf where a key is not seen: the new greatest of each row, the factors that what was summed before is to be
// scaled by, and what is subtracted before they become weights.
template <int D, int count>
__device__ void find_most(const float (&scores)[count][4], Sums<D>& sums, float scale, float (&factors)[2],
                          float (&bases)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) most[k] = fmaxf(scores[k][2 * half], scores[k][2 * half + 1]);
#pragma unroll
    for (int n = 4; n < count; ++n) {
      most[n % 4] = fmaxf(most[n % 4], fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    }
    float now = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
    now = fmaxf(now, __shfl_xor_sync(whole_warp, now, 1));
    now = fmaxf(now, __shfl_xor_sync(whole_warp, now, 2));
    now = fmaxf(sums.most[half], now * scale);
    bases[half] = now == minus_infinity() ? 0.0f : now;
    factors[half] = power_of_two(sums.most[half] - bases[half]);
    sums.most[half] = now;
    sums.total[half] *= factors[half];
  }
}
// Scores [first, end) into weights.
template <int first, int end, int D, int count>
__device__ void soften_some(float (&scores)[count][4], Sums<D>& sums, float scale, const float (&bases)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total[4] = {sums.total[half], 0, 0, 0};
#pragma unroll
    for (int n = first; n < end; ++n) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float weight = power_of_two(fmaf(scores[n][2 * half + k], scale, -bases[half]));
        scores[n][2 * half + k] = weight;
        total[(2 * n + k) % 4] += weight;
      }
    }
    sums.total[half] = (total[0] + total[1]) + (total[2] + total[3]);
  }
}
template <int D, int count>
__device__ void soften(float (&scores)[count][4], Sums<D>& sums, float scale, float (&factors)[2]) {
  float bases[2];
  find_most(scores, sums, scale, factors, bases);
  soften_some<0, count>(scores, sums, scale, bases);
}

// The total of a thread's columns into that of the row.
template <int D>
__device__ void finish(Sums<D>& sums) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sums.total[half] += __shfl_xor_sync(whole_warp, sums.total[half], 1);
    sums.total[half] += __shfl_xor_sync(whole_warp, sums.total[half], 2);
  }
}

__device__ float logarithm(float most, float total) {
  return total == 0 ? minus_infinity() : fmaf(most, ln_2, logf(total));
}

template <class T, int D>
__device__ void store_own(const Plan& plan, const Rows& rows, int warp_row, const Sums<D>& sums, bool aligned) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const auto head_dim = static_cast<int>(plan.head_dim);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp_row + lane / 4 + 8 * half;
    const bool exists = rows.exists(row);
    const float total = sums.total[half];
    const float factor = total == 0 ? 0.0f : __fdividef(1.0f, total);
    T* const to = static_cast<T*>(plan.out.data) + (exists ? rows.offset(plan.out, row) : 0);
    if (aligned) {
      store_aligned_row<T, D>(to, sums.out, half, factor, head_dim, exists);
    } else if (exists) {
      store_row<T, D>(to, sums.out, half, factor, head_dim, false);
    }
    if (plan.lse != nullptr && lane % 4 == 0 && exists) {
      plan.lse[rows.lse_offset(plan, row)] = logarithm(sums.most[half], total);
    }
  }
}

// The greater of two greatest scores, and what the sums that go with either are multiplied by.
struct Rescaling {
  float most, mine_by, theirs_by;

  __device__ Rescaling(float mine, float theirs) : most(fmaxf(mine, theirs)) {
    const float base = most == minus_infinity() ? 0.0f : most;
    mine_by = power_of_two(mine - base);
    theirs_by = power_of_two(theirs - base);
  }
};

// What a warp leaves for another one with the same rows and other keys: each of its lanes for the same lane there, the greatest
// score and the total last. It takes handed_bytes(count).
template <int count>
__device__ void leave_for_lane(std::uint32_t to, const float (&out)[count][4], const float (&most)[2],
                               const float (&total)[2]) {
  to += threadIdx.x % warp_size * 16;
#pragma unroll
  for (int n = 0; n < count; ++n) write_shared(to + n * warp_size * 16, out[n]);
  const float statistics[4] = {most[0], most[1], total[0], total[1]};
  write_shared(to + count * warp_size * 16, statistics);
}
// What was left, added to what this warp has. by_column: of four places the second and the fourth are the second row's, else
// the last two.
template <bool by_column, int count>
__device__ void add_for_lane(std::uint32_t from, float (&out)[count][4], float (&most)[2], float (&total)[2]) {
  from += threadIdx.x % warp_size * 16;
  const float4 statistics = read_shared_quad(from + count * warp_size * 16);
  const float their_most[2] = {statistics.x, statistics.y};
  const float their_total[2] = {statistics.z, statistics.w};
  float mine_by[2], theirs_by[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const Rescaling to(most[k], their_most[k]);
    most[k] = to.most;
    mine_by[k] = to.mine_by;
    theirs_by[k] = to.theirs_by;
    total[k] = fmaf(their_total[k], to.theirs_by, total[k] * to.mine_by);
  }
#pragma unroll
  for (int n = 0; n < count; ++n) {
    const float4 quad = read_shared_quad(from + n * warp_size * 16);
    const float theirs[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int row = by_column ? k % 2 : k / 2;
      out[n][k] = fmaf(theirs[k], theirs_by[row], out[n][k] * mine_by[row]);
    }
  }
}

// Sums of some of its rows that a block leaves in its shared memory for its cluster.
template <int D>
struct LeftSums {
  static constexpr int pitch = sum_pitch(D) * 4;
  std::uint32_t sums, statistics;  // the greatest score and the total of each row
  int first, rows;                 // of the block

  __device__ LeftSums(std::uint32_t at, std::uint32_t statistics_at, int first_row, int row_count)
      : sums(at), statistics(statistics_at), first(first_row), rows(row_count) {}

  __device__ void leave(const Sums<D>& from, int warp_row) const {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + lane / 4 + 8 * half;
      if (lane % 4 == 0) write_shared(statistics + row * 8, from.most[half], from.total[half]);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        write_shared(sums + row * pitch + n * 32 + lane % 4 * 8, from.out[n][2 * half], from.out[n][2 * half + 1]);
      }
    }
  }
};

// Every block of the cluster has left its sums; each merges every split-th row. What it reads of other blocks takes long to come
// and a block answers one at a time: so several rows are asked for at once, and each block begins with itself. Of a row the
// order is always the same.
template <class T, int D>
__device__ void merge(const Call& call, const Rows& rows, const LeftSums<D>& left, int thread, int threads) {
  constexpr int quads = D / 4;
  constexpr int together = D > 128 ? 4 : 2;
  const Plan& plan = call.plan;
  const int split = call.units.split;
  const int here = min(left.rows, rows.count - rows.first - left.first);
  const auto mine = static_cast<int>(call.units.by_split.divide(max(here - rows.rank + split - 1, 0)));
  for (int begin = thread; begin < mine * quads; begin += together * threads) {
    int row[together], column[together];
    float most[together], total[together];
    float4 sum[together];
#pragma unroll
    for (int t = 0; t < together; ++t) {
      const int k = begin + t * threads < mine * quads ? begin + t * threads : begin;
      row[t] = k / quads * split + rows.rank;
      column[t] = k % quads * 4;
      most[t] = minus_infinity();
      total[t] = 0;
      sum[t] = float4{0, 0, 0, 0};
    }
    int block = rows.rank;
#pragma unroll 1
    for (int part = 0; part < split; ++part) {
      const std::uint32_t from = of_block(left.sums, block, rows.rank);
      const std::uint32_t statistics = from + (left.statistics - left.sums);
      float2 theirs[together];
      float4 addend[together];
#pragma unroll
      for (int t = 0; t < together; ++t) {
        theirs[t] = read_cluster_pair(statistics + row[t] * 8);
        addend[t] = read_cluster_quad(from + row[t] * LeftSums<D>::pitch + column[t] * 4);
      }
#pragma unroll
      for (int t = 0; t < together; ++t) {
        const Rescaling to(most[t], theirs[t].x);
        most[t] = to.most;
        total[t] = fmaf(theirs[t].y, to.theirs_by, total[t] * to.mine_by);
        sum[t].x = fmaf(addend[t].x, to.theirs_by, sum[t].x * to.mine_by);
        sum[t].y = fmaf(addend[t].y, to.theirs_by, sum[t].y * to.mine_by);
        sum[t].z = fmaf(addend[t].z, to.theirs_by, sum[t].z * to.mine_by);
        sum[t].w = fmaf(addend[t].w, to.theirs_by, sum[t].w * to.mine_by);
      }
      block = block + 1 == split ? 0 : block + 1;
    }
#pragma unroll
    for (int t = 0; t < together; ++t) {
      if (t > 0 && begin + t * threads >= mine * quads) break;
      const float factor = total[t] == 0 ? 0.0f : __fdividef(1.0f, total[t]);
      T* const to = static_cast<T*>(plan.out.data) + rows.offset(plan.out, left.first + row[t]) + column[t];
      const float out[4] = {sum[t].x * factor, sum[t].y * factor, sum[t].z * factor, sum[t].w * factor};
      if (column[t] < plan.head_dim) store_quad(to, call.aligned, out);
      if (plan.lse != nullptr && column[t] == 0) {
        plan.lse[rows.lse_offset(plan, left.first + row[t])] = logarithm(most[t], total[t]);
      }
    }
  }
}

// The end of a block: what its first so many threads summed, merged where several have the same rows, and stored. wide: its other
// threads do something else, else there are none; narrow: some of those use the stages, too. summed_rows: of all those warps.
template <class T, bool wide, bool narrow, int D>
__device__ void finish_rows(const Call& call, const Rows& rows, std::uint32_t memory, const Memory& layout,
                            Sums<D>& sums, int summed_rows, int warp_row, int share, int threads) {
  const bool alone = call.units.split == 1;
  finish(sums);
  if (call.key_warps == 1 && alone) return store_own<T>(call.plan, rows, warp_row, sums, call.aligned);
  // The stages have been used.
  if constexpr (narrow) {
    const Arrivals used{memory + layout.used()};
    used.arrive();
    used.wait(0);
    __syncwarp();
  } else if constexpr (wide) {
    wait_for_warps(0, threads / warp_size);
  } else {
    __syncthreads();
  }
  if (call.key_warps > 1) {
    static_assert(handed_bytes(D / 8) == warp_rows * LeftSums<D>::pitch);  // so much as the rows take that others read
    const std::uint32_t here = memory + warp_row * LeftSums<D>::pitch;
    const int step = summed_rows * LeftSums<D>::pitch;
    if (share > 0) leave_for_lane(here + share * step, sums.out, sums.most, sums.total);
    if constexpr (wide) {
      const Arrivals handed{memory + layout.handed() + warp_row / warp_rows * 8};
      if (share > 0) {
        handed.arrive();
      } else {
        handed.wait(0);
        __syncwarp();
      }
    } else {
      __syncthreads();
    }
#pragma unroll 1
    for (int other = 1; other < call.key_warps && share == 0; ++other) {
      add_for_lane<false>(here + other * step, sums.out, sums.most, sums.total);
    }
  }
  if (alone) {
    if (share == 0) store_own<T>(call.plan, rows, warp_row, sums, call.aligned);
    return;
  }
  const LeftSums<D> left(memory, memory + layout.statistics(), 0, summed_rows);
  if (share == 0) left.leave(sums, warp_row);
  wait_for_cluster();
  merge<T>(call, rows, left, static_cast<int>(threadIdx.x), threads);
  leave_cluster();  // nobody leaves whose sums are still read
}

}  // namespace
}  // namespace robocache::attention_op
