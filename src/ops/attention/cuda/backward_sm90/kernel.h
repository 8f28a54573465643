// The gradients of attention of half types on Hopper, with TMA and wgmma.
//
// One launch has two kinds of blocks with one mainloop. A query block keeps rows of q and d_out in shared memory and streams
// tiles of keys and values, for d_q. A key block keeps keys and values and streams tiles of q and d_out, for d_keys and
// d_values. With X, Y the kept and U, W the streamed tiles, both compute the scores S = X U^T and dP = Y W^T, turn them in
// registers into P and dS, and use these as A operands: sums += dS U, and for d_values += P W. So P and dS never go through
// shared memory, there are no atomics, and every sum has a fixed order. The price is that S and dP are computed twice: seven
// products instead of five.
#pragma once

#include <algorithm>

#include "ops/attention/cuda/backward/dkv.h"
#include "ops/attention/cuda/backward_sm90/epilogue.h"
#include "ops/attention/cuda/backward_sm90/mainloop.h"
#include "ops/attention/cuda/backward_sm90/producer.h"
#include "ops/attention/cuda/backward_sm90/row_statistics.h"
#include "ops/attention/cuda/launch.h"

namespace robocache::attention_op {
namespace {

template <class T, int D, bool windowed, int groups>
__global__ void __launch_bounds__(sm90_threads(groups), groups == 1 ? 2 : 1)
    attention_backward_sm90_kernel(const __grid_constant__ Sm90BackwardCall all) {
#if ROBOCACHE_HAS_WGMMA  // compiled empty for other GPUs, where it is never launched
  extern __shared__ __align__(1024) unsigned char memory[];
  using L = Sm90Layout<D, groups>;
  const L layout{warp_uniform(static_cast<std::uint32_t>(__cvta_generic_to_shared(memory)))};
  const int warp = warp_uniform(static_cast<int>(threadIdx.x / warp_size));
  const Sm90WorkTile work(all, groups * sm90_rows);
  const int active = work.active_groups();
  if (threadIdx.x == 0) {
    layout.kept_full(false).init();
    layout.kept_full(true).init();
    for (int stage = 0; stage < L::stages; ++stage) {
      layout.full(stage, false).init();
      layout.full(stage, true).init();
      layout.empty(stage).init(active * 4);
    }
    fence_proxy_async();
  }
  __syncthreads();
  Producer<L> producer(all, work, layout);
  if (warp >= groups * 4) {
    if constexpr (groups > 1) {
      warpgroup_reg_dealloc<sm90_backward::producer_registers>();
      if (warp == groups * 4 && elect_one()) {
        producer.begin();
        while (producer.copy_next()) {
        }
      }
    }
  } else {
    if constexpr (groups > 1) {
      warpgroup_reg_alloc<sm90_backward::consumer_registers>();
    } else if (threadIdx.x == 0) {
      producer.begin();
      for (int stage = 1; stage < L::stages; ++stage) producer.copy_next();
    }
    __syncwarp();
    const auto refill = [&] {
      if constexpr (groups == 1) {
        if (threadIdx.x == 0) producer.copy_next();
        __syncwarp();
      }
    };
    const int group = warp / 4;
    if (group >= active) return;
    const BackwardPlan& plan = all.call.plan;
    const auto scale = static_cast<float>(plan.forward.scale);
    float sums[D / 8][4] = {};
    if (work.of_keys) {
      float second[D / 8][4] = {};
      sm90_mainloop<T, D, windowed, true>(all, work, layout, refill, group, sums, second);
      launch_dependent_grids();
      store_gradient<T, D>(all, work, group, plan.d_keys[0], false, sums, scale);
      store_gradient<T, D>(all, work, group, plan.d_values[0], true, second, 1.0f);
    } else {
      float none[1][4];
      sm90_mainloop<T, D, windowed, false>(all, work, layout, refill, group, sums, none);
      launch_dependent_grids();
      store_gradient<T, D>(all, work, group, plan.d_q, false, sums, scale);
    }
  }
#endif
}

template <class T>
void run_sm90_backward(const BackwardPlan& plan, const BackwardTensorMaps& maps, const Sm90Scratch& scratch,
                       FaultBox* box, int device, cudaStream_t stream) {
  const Plan& forward = plan.forward;
  Sm90BackwardCall all;
  all.call.plan = plan;
  all.call.box = box;
  all.call.aligned = true;
  all.call.scratch.delta = scratch.delta;
  all.call.scratch.partials = scratch.partials;
  all.call.scratch.key_split = scratch.key_split;
  all.lse = scratch.lse;
  all.maps = maps;
  all.left = static_cast<int>(std::min<std::int64_t>(forward.left, sm90_unbounded));
  all.right = static_cast<int>(std::min<std::int64_t>(forward.right, sm90_unbounded));
  all.shift = static_cast<int>(forward.keys - forward.queries);
  all.query_tiles = static_cast<int>(divide_up(forward.queries, sm90_rows));
  all.key_tiles = static_cast<int>(divide_up(forward.keys, sm90_rows));
  all.query_blocks = static_cast<int>(divide_up(forward.queries, scratch.groups * sm90_rows));
  all.key_blocks = static_cast<int>(divide_up(forward.keys, scratch.groups * sm90_rows));
  const std::int64_t rows = forward.batch * forward.heads * all.query_tiles * sm90_rows;
  const auto statistics = [&](auto lanes) {
    constexpr int count = decltype(lanes)::value;
    launch<&attention_row_statistics_kernel<T, count>>(divide_up(rows * count, delta_threads), delta_threads, 0, all,
                                                       device, stream);
  };
  if (forward.head_dim <= 64) {
    statistics(std::integral_constant<int, 8>{});
  } else {
    statistics(std::integral_constant<int, 16>{});
  }
  const bool of_keys = wants(plan.d_keys) || wants(plan.d_values);
  const std::int64_t key_blocks = of_keys ? forward.batch * forward.kv_heads * all.key_blocks * scratch.key_split : 0;
  const std::int64_t query_blocks = plan.d_q.data != nullptr ? forward.batch * forward.heads * all.query_blocks : 0;
  all.all_key_blocks = static_cast<unsigned>(key_blocks);
  const auto run_groups = [&](auto padded, auto count) {
    constexpr int D = decltype(padded)::value;
    constexpr int groups = decltype(count)::value;
    constexpr int bytes = Sm90Layout<D, groups>::bytes;
    const std::int64_t blocks = key_blocks + query_blocks;
    if (forward.left < unbounded || forward.right < unbounded) {
      launch<&attention_backward_sm90_kernel<T, D, true, groups>>(blocks, sm90_threads(groups), bytes, all, device,
                                                                  stream);
    } else {
      launch<&attention_backward_sm90_kernel<T, D, false, groups>>(blocks, sm90_threads(groups), bytes, all, device,
                                                                   stream);
    }
  };
  const auto run = [&](auto padded) {
    if (scratch.groups == 1) {
      run_groups(padded, std::integral_constant<int, 1>{});
    } else {
      run_groups(padded, std::integral_constant<int, 2>{});
    }
  };
  switch (padded_head_dim(forward.head_dim)) {
    case 48:
      run(std::integral_constant<int, 48>{});
      break;
    case 64:
      run(std::integral_constant<int, 64>{});
      break;
    case 80:
      run_groups(std::integral_constant<int, 80>{}, std::integral_constant<int, 2>{});
      break;
    default:
      run_groups(std::integral_constant<int, 128>{}, std::integral_constant<int, 2>{});
      break;
  }
  if (of_keys && scratch.key_split > 1) {
    all.call.padded_head_dim = padded_head_dim(forward.head_dim);
    const std::int64_t sums = 2 * forward.batch * forward.kv_heads * forward.keys;
    launch<&attention_sum_kernel<T>>(divide_up(sums * warp_size, delta_threads), delta_threads, 0, all.call, device,
                                     stream);
  }
}

}  // namespace
}  // namespace robocache::attention_op
