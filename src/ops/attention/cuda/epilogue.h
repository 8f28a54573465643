// Epilogue of the forward kernels. Warps of a block that have the same rows and other keys (sliced-K) merge their partial
// results, then the blocks of a cluster do (split-K), and the rows are stored. Every merge has a fixed order.
#pragma once

#include "gpu/cluster.h"
#include "gpu/shared_memory.h"
#include "ops/attention/cuda/forward_call.h"
#include "ops/attention/cuda/named_barriers.h"
#include "ops/attention/cuda/softmax.h"
#include "ops/attention/cuda/store.h"

namespace robocache::attention_op {
namespace {

template <class T, int D>
__device__ void store_output(const Plan& plan, const Rows& rows, int warp_row, const Accumulators<D>& acc,
                             bool aligned) {
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const auto head_dim = static_cast<int>(plan.head_dim);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp_row + lane / 4 + 8 * half;
    const bool exists = rows.exists(row);
    const float sum = acc.row_sum[half];
    const float factor = sum == 0 ? 0.0f : __fdividef(1.0f, sum);
    T* const to = static_cast<T*>(plan.out.data) + (exists ? rows.offset(plan.out, row) : 0);
    if (aligned) {
      store_aligned_row<T, D>(to, acc.out, half, factor, head_dim, exists);
    } else if (exists) {
      store_row<T, D>(to, acc.out, half, factor, head_dim, false);
    }
    if (plan.lse != nullptr && lane % 4 == 0 && exists) {
      plan.lse[rows.lse_offset(plan, row)] = log_sum_exp(acc.row_max[half], sum);
    }
  }
}

// The maximum of two row maxima, and the factors that rescale the accumulators of either to it.
struct MergedMax {
  float row_max, scale_mine, scale_theirs;

  __device__ MergedMax(float mine, float theirs) : row_max(fmaxf(mine, theirs)) {
    const float base = row_max == minus_infinity() ? 0.0f : row_max;
    scale_mine = exp2_approx(mine - base);
    scale_theirs = exp2_approx(theirs - base);
  }
};

// Writes a warp's partial result to shared memory for another warp with the same rows: partial_bytes(count) bytes, each lane
// for the same lane of the other warp.
template <int count>
__device__ void write_partial(std::uint32_t to, const float (&out)[count][4], const float (&row_max)[2],
                              const float (&row_sum)[2]) {
  to += threadIdx.x % warp_size * 16;
#pragma unroll
  for (int n = 0; n < count; ++n) st_shared(to + n * warp_size * 16, out[n]);
  const float statistics[4] = {row_max[0], row_max[1], row_sum[0], row_sum[1]};
  st_shared(to + count * warp_size * 16, statistics);
}
// Adds a partial result to this warp's own. transposed: the accumulators of tail rows, whose elements 1 and 3 belong to the
// second row; otherwise elements 2 and 3 do.
template <bool transposed, int count>
__device__ void add_partial(std::uint32_t from, float (&out)[count][4], float (&row_max)[2], float (&row_sum)[2]) {
  from += threadIdx.x % warp_size * 16;
  const float4 statistics = ld_shared_float4(from + count * warp_size * 16);
  const float their_max[2] = {statistics.x, statistics.y};
  const float their_sum[2] = {statistics.z, statistics.w};
  float scale_mine[2], scale_theirs[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const MergedMax to(row_max[k], their_max[k]);
    row_max[k] = to.row_max;
    scale_mine[k] = to.scale_mine;
    scale_theirs[k] = to.scale_theirs;
    row_sum[k] = fmaf(their_sum[k], to.scale_theirs, row_sum[k] * to.scale_mine);
  }
#pragma unroll
  for (int n = 0; n < count; ++n) {
    const float4 quad = ld_shared_float4(from + n * warp_size * 16);
    const float theirs[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int row = transposed ? k % 2 : k / 2;
      out[n][k] = fmaf(theirs[k], scale_theirs[row], out[n][k] * scale_mine[row]);
    }
  }
}

// The partial results of a block's rows in its shared memory, where the other blocks of the cluster read them.
template <int D>
struct SplitPartials {
  static constexpr int pitch = partial_pitch(D) * 4;
  std::uint32_t output, statistics;  // statistics: maximum and sum of each row
  int first, rows;                   // of the block

  __device__ SplitPartials(std::uint32_t at, std::uint32_t statistics_at, int first_row, int row_count)
      : output(at), statistics(statistics_at), first(first_row), rows(row_count) {}

  __device__ void store(const Accumulators<D>& from, int warp_row) const {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + lane / 4 + 8 * half;
      if (lane % 4 == 0) st_shared(statistics + row * 8, from.row_max[half], from.row_sum[half]);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        st_shared(output + row * pitch + n * 32 + lane % 4 * 8, from.out[n][2 * half], from.out[n][2 * half + 1]);
      }
    }
  }
};

// Reduces the partial results over the cluster, when all its blocks have stored theirs. Each block reduces every split-th row.
// Reads of distributed shared memory have a long latency, and a block serves one at a time: so a thread has several rows in
// flight, and each block begins with itself. The order of a row's blocks depends on the row alone.
template <class T, int D>
__device__ void reduce_over_cluster(const ForwardCall& call, const Rows& rows, const SplitPartials<D>& partials,
                                    int thread, int threads) {
  constexpr int quads = D / 4;
  constexpr int in_flight = D > 128 ? 4 : 2;
  const Plan& plan = call.plan;
  const int split = call.scheduler.split;
  const int here = min(partials.rows, rows.count - rows.first - partials.first);
  const auto mine = static_cast<int>(call.scheduler.by_split.divide(max(here - rows.rank + split - 1, 0)));
  for (int begin = thread; begin < mine * quads; begin += in_flight * threads) {
    int row[in_flight], column[in_flight];
    float row_max[in_flight], row_sum[in_flight];
    float4 out[in_flight];
#pragma unroll
    for (int t = 0; t < in_flight; ++t) {
      const int k = begin + t * threads < mine * quads ? begin + t * threads : begin;
      row[t] = k / quads * split + rows.rank;
      column[t] = k % quads * 4;
      row_max[t] = minus_infinity();
      row_sum[t] = 0;
      out[t] = float4{0, 0, 0, 0};
    }
    int block = rows.rank;
#pragma unroll 1
    for (int part = 0; part < split; ++part) {
      const std::uint32_t from = map_to_block(partials.output, block, rows.rank);
      const std::uint32_t statistics = from + (partials.statistics - partials.output);
      float2 theirs[in_flight];
      float4 addend[in_flight];
#pragma unroll
      for (int t = 0; t < in_flight; ++t) {
        theirs[t] = ld_cluster_float2(statistics + row[t] * 8);
        addend[t] = ld_cluster_float4(from + row[t] * SplitPartials<D>::pitch + column[t] * 4);
      }
#pragma unroll
      for (int t = 0; t < in_flight; ++t) {
        const MergedMax to(row_max[t], theirs[t].x);
        row_max[t] = to.row_max;
        row_sum[t] = fmaf(theirs[t].y, to.scale_theirs, row_sum[t] * to.scale_mine);
        out[t].x = fmaf(addend[t].x, to.scale_theirs, out[t].x * to.scale_mine);
        out[t].y = fmaf(addend[t].y, to.scale_theirs, out[t].y * to.scale_mine);
        out[t].z = fmaf(addend[t].z, to.scale_theirs, out[t].z * to.scale_mine);
        out[t].w = fmaf(addend[t].w, to.scale_theirs, out[t].w * to.scale_mine);
      }
      block = block + 1 == split ? 0 : block + 1;
    }
#pragma unroll
    for (int t = 0; t < in_flight; ++t) {
      if (t > 0 && begin + t * threads >= mine * quads) break;
      const float factor = row_sum[t] == 0 ? 0.0f : __fdividef(1.0f, row_sum[t]);
      T* const to = static_cast<T*>(plan.out.data) + rows.offset(plan.out, partials.first + row[t]) + column[t];
      const float scaled[4] = {out[t].x * factor, out[t].y * factor, out[t].z * factor, out[t].w * factor};
      if (column[t] < plan.head_dim) store_quad(to, call.aligned, scaled);
      if (plan.lse != nullptr && column[t] == 0) {
        plan.lse[rows.lse_offset(plan, partials.first + row[t])] = log_sum_exp(row_max[t], row_sum[t]);
      }
    }
  }
}

// The last accesses to distributed shared memory are done in all blocks: only then may one of them end.
__device__ void leave_cluster() {
  cluster_arrive_relaxed();
  cluster_wait();
}

// Arrivals at the mbarrier by which the other key slices of a row warp tell the first one that their partial results are
// written.
__device__ int partial_ready_arrivals(int key_warps) { return (key_warps - 1) * warp_size; }

// Waits until all warps of the block have read the stages, whose place the partial results take.
template <bool sm90, bool has_tail>
__device__ void wait_until_stages_are_free(std::uint32_t memory, const SharedLayout& layout, int threads) {
  if constexpr (has_tail) {
    const Mbarrier stages_free{memory + layout.stages_free()};
    stages_free.arrive();
    stages_free.wait(0);
    __syncwarp();
  } else if constexpr (sm90) {
    named_barrier_sync(barrier_id(NamedBarrier::consumers), threads / warp_size);
  } else {
    __syncthreads();
  }
}

// Called by the first `threads` threads of a block, which have accumulated. sm90: the others are producers; has_tail: some of
// those have tail rows, and use the stages too. block_rows: of all row warps together.
template <class T, bool sm90, bool has_tail, int D>
__device__ void epilogue(const ForwardCall& call, const Rows& rows, std::uint32_t memory, const SharedLayout& layout,
                         Accumulators<D>& acc, int block_rows, int warp_row, int key_slice, int threads) {
  const bool alone = call.scheduler.split == 1;
  reduce_row_sum(acc);
  if (call.key_warps == 1 && alone) return store_output<T>(call.plan, rows, warp_row, acc, call.aligned);
  wait_until_stages_are_free<sm90, has_tail>(memory, layout, threads);
  if (call.key_warps > 1) {
    static_assert(partial_bytes(D / 8) == warp_rows * SplitPartials<D>::pitch, "one place serves both merges");
    const std::uint32_t slot = memory + warp_row * SplitPartials<D>::pitch;
    const int step = block_rows * SplitPartials<D>::pitch;
    if (key_slice > 0) write_partial(slot + key_slice * step, acc.out, acc.row_max, acc.row_sum);
    if constexpr (sm90) {
      const Mbarrier partial_ready{memory + layout.partial_ready() + warp_row / warp_rows * 8};
      if (key_slice > 0) {
        partial_ready.arrive();
      } else {
        partial_ready.wait(0);
        __syncwarp();
      }
    } else {
      __syncthreads();
    }
#pragma unroll 1
    for (int other = 1; other < call.key_warps && key_slice == 0; ++other) {
      add_partial<false>(slot + other * step, acc.out, acc.row_max, acc.row_sum);
    }
  }
  if (alone) {
    if (key_slice == 0) store_output<T>(call.plan, rows, warp_row, acc, call.aligned);
    return;
  }
  const SplitPartials<D> partials(memory, memory + layout.statistics(), 0, block_rows);
  if (key_slice == 0) partials.store(acc, warp_row);
  cluster_sync();
  reduce_over_cluster<T>(call, rows, partials, static_cast<int>(threadIdx.x), threads);
  leave_cluster();
}

}  // namespace
}  // namespace robocache::attention_op
