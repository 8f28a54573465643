// Split-K partial results reduced over a cluster by pushing them: each block reduces some columns of the output and gets the
// other blocks' partial results for these by bulk copies over distributed shared memory. That network moves 15 to 20 bytes a
// clock from each block of an H200, and few copies at a time. So everything crosses it once, in few large copies, no block
// waits for an answer, and what has arrived is added while the rest is in flight.
#pragma once

#include "ops/attention/cuda/epilogue.h"

namespace robocache::attention_op {
namespace {

// Each warp of a block has 16 rows. Block b of the cluster reduces columns [8 * each * b, 8 * each * (b + 1)). Only the first
// `active` blocks have keys, and so partial results. Chunks and strips: SharedLayout.
template <int D>
struct ClusterReduction {
  static constexpr int strips = D / 8;
  static constexpr int strip = 16 * warp_size;  // bytes of a warp's rows of a strip: one fragment of each thread

  std::uint32_t own;         // this block's partial results, strip by strip with all warps: where the stages were
  std::uint32_t received;    // those of other blocks for the strips of this one, that of the block before it first
  std::uint32_t statistics;  // maximum and sum of all rows of each block
  std::uint32_t mbarriers;   // of others' statistics, and of their chunks
  int split, active, rank, warps, each;

  __device__ ClusterReduction(const ForwardCall& call, const Rows& rows, std::uint32_t memory,
                              const SharedLayout& layout, int active_blocks)
      : own(memory),
        received(memory + layout.stages),
        statistics(memory + layout.statistics()),
        mbarriers(memory + layout.reduction_mbarriers()),
        split(call.scheduler.split),
        active(active_blocks),
        rank(rows.rank),
        warps(call.row_warps),
        each(static_cast<int>(call.scheduler.by_split.divide(strips + static_cast<std::uint32_t>(split) - 1))) {}

  // The chunks that go to a block, and the strips in one of them.
  __device__ int chunks(int block) const {
    return (max(min(each, strips - block * each), 0) + strips_per_chunk - 1) / strips_per_chunk;
  }
  __device__ int strips_in_chunk(int block, int number) const {
    return min(min(each, strips - block * each) - number * strips_per_chunk, strips_per_chunk);
  }
  __device__ std::uint32_t statistics_of(int block, int row) const {
    return statistics + (block * warps * warp_rows + row) * 8;
  }
  __device__ Mbarrier statistics_full() const { return {mbarriers}; }
  __device__ Mbarrier chunk_full(int place, int number) const {
    return {mbarriers + (1 + place * chunks(0) + number) * 8};
  }
  // The block that gets this block's n-th push. At any time the blocks push to different ones.
  __device__ int after(int n) const { return rank + 1 + n < split ? rank + 1 + n : rank + 1 + n - split; }
  // The block whose n-th push comes to this block.
  __device__ int before(int n) const { return rank > n ? rank - 1 - n : rank - 1 - n + split; }

  // By one thread, before the cluster's first barrier.
  __device__ void init() const {
    statistics_full().init();
    statistics_full().arrive_expect_tx((active - (rank < active ? 1 : 0)) * warps * warp_rows * 8);
    const int mine = chunks(rank);
#pragma unroll 1
    for (int place = 0; place < split - 1; ++place) {
#pragma unroll 1
      for (int number = 0; number < mine; ++number) {
        chunk_full(place, number).init();
        if (before(place) < active)
          chunk_full(place, number).arrive_expect_tx(strips_in_chunk(rank, number) * warps * strip);
      }
    }
    fence_mbarrier_init();
  }

  // Pushes maximum and sum of a warp's rows to all blocks, when all have initialized their mbarriers.
  __device__ void push_statistics(const Accumulators<D>& acc, int warp) const {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    const int row = lane % warp_rows;
    float pairs[2][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      pairs[half][0] = __shfl_sync(whole_warp, acc.row_max[half], row % 8 * 4);
      pairs[half][1] = __shfl_sync(whole_warp, acc.row_sum[half], row % 8 * 4);
    }
    const float most = row < 8 ? pairs[0][0] : pairs[1][0];
    const float total = row < 8 ? pairs[0][1] : pairs[1][1];
    const std::uint32_t at = statistics_of(rank, warp * warp_rows + row);
    if (lane < warp_rows) st_shared(at, most, total);
#pragma unroll 1
    for (int n = lane / warp_rows; n < split - 1; n += 2) {
      st_async(map_to_block(at, after(n), rank), most, total, Mbarrier{map_to_block(mbarriers, after(n), rank)});
    }
  }
  // Stores a warp's partial result, when no warp of its block reads the stages any more.
  __device__ void store(const Accumulators<D>& acc, int warp) const {
    const std::uint32_t to = own + warp * strip + threadIdx.x % warp_size * 16;
#pragma unroll
    for (int n = 0; n < strips; ++n) st_shared(to + n * warps * strip, acc.out[n]);
    fence_proxy_async();
  }
  // Pushes the chunks, when all warps have stored theirs and all blocks have released their queries, whose place they take.
  // Four warps share the blocks that get them.
  __device__ void push(int warp) const {
    const auto n = static_cast<int>(threadIdx.x % warp_size);
    if (n >= split - 1 || n % 4 != warp) return;
    const int slice = each * warps * strip;
    const int most_bytes = strips_per_chunk * warps * strip;
    const int to = after(n);
    const int bytes = min(slice, strips * warps * strip - to * slice);
    std::uint32_t counter = map_to_block(chunk_full(n, 0).address, to, rank);
#pragma unroll 1
    for (int sent = 0; sent < bytes; sent += most_bytes, counter += 8) {
      bulk_copy_to_block(map_to_block(received + n * slice + sent, to, rank), own + to * slice + sent,
                         min(bytes - sent, most_bytes), Mbarrier{counter});
    }
  }

  // Replaces each block's row maxima by the factors that its partial results are to be multiplied by, and stores lse. Two
  // threads have a row.
  __device__ void find_factors(const ForwardCall& call, const Rows& rows, int warp) const {
    constexpr int most_blocks = 16 / 2;  // of a thread
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    const int row = warp * warp_rows + lane % warp_rows;
    const std::uint32_t at = statistics_of(lane / warp_rows, row);
    const int step = statistics_of(2, row) - statistics_of(0, row);
    statistics_full().wait(0);
    __syncwarp();
    float2 theirs[most_blocks];
    float most = minus_infinity();
#pragma unroll
    for (int k = 0; k < most_blocks; ++k) {
      theirs[k] = float2{minus_infinity(), 0};
      if (lane / warp_rows + 2 * k < active) theirs[k] = ld_shared_float2(at + k * step);
      most = fmaxf(most, theirs[k].x);
    }
    most = fmaxf(most, __shfl_xor_sync(whole_warp, most, warp_rows));
    const float base = most == minus_infinity() ? 0.0f : most;
    float total = 0;
#pragma unroll
    for (int k = 0; k < most_blocks; ++k) {
      theirs[k].x = exp2_approx(theirs[k].x - base);
      total = fmaf(theirs[k].y, theirs[k].x, total);
    }
    total += __shfl_xor_sync(whole_warp, total, warp_rows);
    const float factor = total == 0 ? 0.0f : __fdividef(1.0f, total);
#pragma unroll
    for (int k = 0; k < most_blocks; ++k) {
      if (lane / warp_rows + 2 * k < active) st_shared(at + k * step, theirs[k].x * factor, theirs[k].y);
    }
    if (call.plan.lse != nullptr && rank == 0 && lane < warp_rows && rows.exists(row)) {
      call.plan.lse[rows.lse_offset(call.plan, row)] = log_sum_exp(most, total);
    }
    __syncwarp();
  }

  // Reduces and stores this block's columns of a warp's rows. The order of the blocks is fixed; later keys come last, because
  // their masks take longer.
  template <class T>
  __device__ void reduce(const ForwardCall& call, const Rows& rows, int warp) const {
    const auto lane = static_cast<int>(threadIdx.x % warp_size);
    T* to[2];
    bool exists[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp * warp_rows + lane / 4 + 8 * half;
      exists[half] = rows.exists(row);
      to[half] =
          static_cast<T*>(call.plan.out.data) + (exists[half] ? rows.offset(call.plan.out, row) : 0) + rank * each * 8;
    }
    find_factors(call, rows, warp);
    const int mine = chunks(rank);
    if (mine == 0) cluster_arrive_relaxed();
    const std::uint32_t factors_at = statistics_of(0, warp * warp_rows + lane / 4);
    const int slice = each * warps * strip;
    const std::uint32_t place_here = warp * strip + lane * 16;
#pragma unroll 1
    for (int number = 0; number < mine; ++number) {
      const int first = number * strips_per_chunk;
      std::uint32_t strip_at[strips_per_chunk];  // past the last strip that one again, which is not stored
#pragma unroll
      for (int n = 0; n < strips_per_chunk; ++n) strip_at[n] = place_here + min(first + n, each - 1) * warps * strip;
      float sums[strips_per_chunk][4] = {};
      const auto add = [&](int block, std::uint32_t slice_at) {
        const std::uint32_t at = factors_at + block * warps * warp_rows * 8;
        const float factors[2] = {ld_shared_float2(at).x, ld_shared_float2(at + 8 * 8).x};
        float4 x[strips_per_chunk];
#pragma unroll
        for (int n = 0; n < strips_per_chunk; ++n) x[n] = ld_shared_float4(slice_at + strip_at[n]);
#pragma unroll
        for (int n = 0; n < strips_per_chunk; ++n) {
          const float addends[4] = {x[n].x, x[n].y, x[n].z, x[n].w};
#pragma unroll
          for (int k = 0; k < 4; ++k) sums[n][k] = fmaf(addends[k], factors[k / 2], sums[n][k]);
        }
      };
#pragma unroll 2
      for (int block = 0; block < active; ++block) {
        const int place = block < rank ? rank - 1 - block : rank - 1 - block + split;
        if (block != rank) chunk_full(place, number).wait(0);
        add(block, block == rank ? own + rank * slice : received + place * slice);
      }
      if (number + 1 == mine) cluster_arrive_relaxed();  // all pushes to this block have arrived
      const int columns = min(static_cast<int>(call.plan.head_dim) - (rank * each + first) * 8, (each - first) * 8);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (call.aligned) {
          store_aligned_row<T, strips_per_chunk * 8>(to[half] + first * 8, sums, half, 1.0f, columns, exists[half]);
        } else if (exists[half]) {
          store_row<T, strips_per_chunk * 8>(to[half] + first * 8, sums, half, 1.0f, columns, false);
        }
      }
    }
  }
};

// The epilogue of a block whose cluster pushes partial results, by all its consumer warps. The active blocks have pushed their
// statistics, and all have arrived in the cluster when they released their queries.
template <class T, int D>
__device__ void pushed_epilogue(const ForwardCall& call, const Rows& rows, const ClusterReduction<D>& reduction,
                                const Accumulators<D>& acc, int warp) {
  if (reduction.rank < reduction.active) {
    named_barrier_sync(barrier_id(NamedBarrier::consumers), reduction.warps);
    reduction.store(acc, warp);
  }
  cluster_wait();
  if (reduction.rank < reduction.active) {
    named_barrier_sync(barrier_id(NamedBarrier::consumers), reduction.warps);
    reduction.push(warp);
    __syncwarp();
  }
  reduction.template reduce<T>(call, rows, warp);
  cluster_wait();  // no block ends while its pushes are in flight
}

}  // namespace
}  // namespace robocache::attention_op
