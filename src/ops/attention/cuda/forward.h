// The launch of a forward pass of a half type.
#pragma once

#include "ops/attention/cuda/forward_sm80/kernel.h"
#include "ops/attention/cuda/forward_sm90/kernel.h"
#include "ops/attention/cuda/launch.h"

namespace robocache::attention_op {
namespace {

template <class T>
void run_forward(const Plan& plan, FaultBox* box, int device, cudaStream_t stream) {
  ForwardCall call;
  const KernelConfig config = config_of(plan, device, call);
  call.aligned = is_aligned(plan) && is_aligned(plan.out, plan.batch);
  call.plan = plan;
  if (DataCheck{&plan}.count() > 0) call.box = box;
  call.scheduler = TileScheduler(plan, config.tiles, config.split);
  for (int bit = 0; bit < 32; ++bit) call.zero_keys[bit * config.row_warps / 32] |= 1u << bit;
  call.row_warps = config.row_warps;
  call.key_warps = config.key_warps;
  call.stages = config.stages;
  const std::int64_t blocks = work_tiles_of(plan, config.tiles) * config.split;
  const int threads = (config.row_warps * config.key_warps + (config.sm90 ? 4 : 0)) * warp_size;
  with_head_dim(plan.head_dim, [&](auto padded) {
    constexpr int D = decltype(padded)::value;
    const auto start = [&]<auto kernel>() {
      const int bytes = SharedLayout(D, config.sm90, config.row_warps, config.key_warps, config.stages, config.split,
                                     config.keys(D), config.has_tail)
                            .bytes();
      launch<kernel>(blocks, threads, bytes, call, device, stream, config.split);
    };
    const bool masked = masking_of(plan) != Masking::none;
    const auto start_sm90 = [&]<int keys>() {
      return plan.segment_count > 1 ? start.template operator()<&attention_sm90_kernel<T, D, true, keys, false, true>>()
             : masked               ? start.template operator()<&attention_sm90_kernel<T, D, true, keys>>()
                                    : start.template operator()<&attention_sm90_kernel<T, D, false, keys>>();
    };
    if constexpr (tuning::has_long_tiles(D)) {
      if (config.long_tiles) return start_sm90.template operator()<tuning::long_keys>();
    }
    constexpr int keys = tuning::keys(D, true);
    if constexpr (tuning::has_tail_rows(D)) {
      if (config.has_tail) {
        return masked ? start.template operator()<&attention_sm90_kernel<T, D, true, keys, true>>()
                      : start.template operator()<&attention_sm90_kernel<T, D, false, keys, true>>();
      }
    }
    if (config.sm90) return start_sm90.template operator()<keys>();
    switch (masking_of(plan)) {
      case Masking::none:
        return start.template operator()<&attention_sm80_kernel<T, D, Masking::none>>();
      case Masking::simple:
        return start.template operator()<&attention_sm80_kernel<T, D, Masking::simple>>();
      case Masking::general:
        return start.template operator()<&attention_sm80_kernel<T, D, Masking::general>>();
    }
  });
}

}  // namespace
}  // namespace robocache::attention_op
