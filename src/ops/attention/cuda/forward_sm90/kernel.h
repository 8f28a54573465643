// Attention of half types on Hopper. A block has one producer warp, which loads tiles of keys and values by TMA into a
// pipeline of stages, and consumer warpgroups with 64 rows each, which multiply by wgmma. key_warps > 1 slices the keys among
// the warps of a block, and a cluster splits them among its blocks (split-K); the epilogue merges the partial results.
//
// Small calls are one chain of latencies. So whatever needs no data comes before wait_on_dependent_grids(), and code that
// runs once is kept short: fetching its instructions is what takes longest.
#pragma once

#include "ops/attention/cuda/forward_sm90/cluster_reduction.h"
#include "ops/attention/cuda/forward_sm90/consumer.h"
#include "ops/attention/cuda/forward_sm90/producer.h"
#include "ops/attention/cuda/forward_sm90/tail_rows.h"
#include "ops/attention/cuda/load.h"

namespace robocache::attention_op {
namespace {

// segmented: keys lie in several segments. They are masked then.
template <class T, int D, bool masked, int keys = tuning::keys(D, true), bool has_tail = false, bool segmented = false>
__global__ void __launch_bounds__(4 * (tuning::warpgroups(D, has_tail) + 1) * warp_size, 1)
    attention_sm90_kernel(const __grid_constant__ ForwardCall call) {
  static_assert(!segmented || (masked && !has_tail));
  static_assert(!has_tail || !tuning::pushes_partials(D), "both have mbarriers in one place (SharedLayout)");
#if ROBOCACHE_HAS_WGMMA  // compiled empty for other GPUs, where it is never launched
  extern __shared__ __align__(1024) unsigned char memory[];
  const Plan& plan = call.plan;
  const int warp = warp_uniform(static_cast<int>(threadIdx.x / warp_size));
  const int consumer_warps = call.row_warps * call.key_warps;
  int key_slice = 0;
  int row_warp = warp;
  for (; row_warp >= call.row_warps && warp < consumer_warps; row_warp -= call.row_warps) ++key_slice;
  const int group_rows = call.row_warps * warp_rows;  // of the warpgroups
  const int block_rows = group_rows + (has_tail ? tail_rows : 0);
  const SharedLayout layout(D, true, call.row_warps, call.key_warps, call.stages, call.scheduler.split, keys, has_tail);
  const std::uint32_t shared = warp_uniform(static_cast<std::uint32_t>(__cvta_generic_to_shared(memory)));
  const KeyValuePipeline<D, keys> pipeline{shared, shared + layout.mbarriers(), call.stages};
  const QueryTile<D> queries{shared + layout.stages, block_rows};
  if (threadIdx.x == 0) {
    for (int k = 0; k < call.row_warps && call.key_warps > 1; ++k) {
      Mbarrier{shared + layout.partial_ready() + k * 8}.init(partial_ready_arrivals(call.key_warps));
    }
    if constexpr (has_tail) Mbarrier{shared + layout.stages_free()}.init((consumer_warps + tail_warps) * warp_size);
    pipeline.init(pipeline.readers(call.row_warps, has_tail));
  }
  if (plan.is_packed() || plan.lengths.data != nullptr) wait_on_dependent_grids();
  Rows rows;
  const bool has_rows = set_rows<T>(plan, call.scheduler, plan.out, plan.lse, block_rows, rows);
  if (call.box != nullptr) check_data_slow_path(plan, call.box);
  if (!has_rows) return;  // as its whole cluster does

  // The keys that any of the rows sees by its position, and this block's part of them.
  int begin = 0;
  auto end = static_cast<int>(rows.s.keys);
  if constexpr (masked) set_visible_keys(plan, rows, block_rows, begin, end);
  int block_from = 0;
  if constexpr (segmented) {
    to_slots<keys>(plan, rows.s, begin, end);
    block_from = begin;
    begin = begin / keys * keys;
  }
  const int active = split_keys(call.scheduler, rows.rank, keys, begin, end);
  const bool pushes_partials = SharedLayout::pushes_partials(D, true, call.scheduler.split);
  const ClusterReduction<D> reduction(call, rows, shared, layout, active);
  if (pushes_partials && threadIdx.x == 0) reduction.init();
  __syncthreads();
  if (warp >= consumer_warps) {
    warpgroup_reg_dealloc<tuning::producer_registers(D, has_tail)>();
    if (warp == consumer_warps) {
      if (elect_one()) produce<segmented>(call, rows, pipeline, queries, begin, end);
    } else if constexpr (has_tail) {
      attend_tail_rows<T, D, masked>(call, rows, pipeline, queries, shared, layout, warp - consumer_warps - 1, begin,
                                     end);
    }
  } else {
    warpgroup_reg_alloc<tuning::consumer_registers(D, has_tail)>();
    const int threads = consumer_warps * warp_size;
    if (pushes_partials) cluster_arrive_relaxed();
    MaskTile<keys, segmented> mask;
    mask.block_from = block_from;
    if constexpr (masked) mask.prepare(plan, rows, block_rows, row_warp * warp_rows);
    wait_on_dependent_grids();
    launch_dependent_grids();
    if (!call.tma_queries) {
      load_rows<T, D>(plan, plan.q, rows, queries, block_rows, true,
                      CopyThread<D>(static_cast<int>(threadIdx.x), threads));
      cp_async_commit_group();
    }
    Accumulators<D> acc;
    mainloop<T, D, masked, keys, has_tail>(call, rows, pipeline, queries, mask, row_warp, key_slice, begin, end, acc,
                                           [&] {
                                             if (!pushes_partials) return;
                                             reduce_row_sum(acc);
                                             reduction.push_statistics(acc, row_warp);
                                           });
    if (plan.append && rows.first == 0) append_keys<T>(plan, rows, rows.rank, call.scheduler.split, threads);
    if (pushes_partials) return pushed_epilogue<T>(call, rows, reduction, acc, row_warp);
    epilogue<T, true, has_tail>(call, rows, shared, layout, acc, group_rows, row_warp * warp_rows, key_slice, threads);
  }
#endif
}

}  // namespace
}  // namespace robocache::attention_op
