// The backward pass of half types by mma.sync, for every GPU and every call.
//
// First delta of each row. Then one launch with two kinds of blocks: blocks of rows go through the keys for d_q, blocks of keys
// go through the rows for d_keys and d_values. There are no atomics: a block adds in a fixed order, and where blocks share
// keys a last kernel adds their partial sums in a fixed order.
#pragma once

#include "core/text.h"
#include "ops/attention/cuda/backward/dkv.h"
#include "ops/attention/cuda/backward/dq.h"

namespace robocache::attention_op {
namespace {

template <class T, int D, Masking masking>
__global__ void __launch_bounds__(backward_threads, D <= 64 ? 2 : 1)
    attention_backward_kernel(const __grid_constant__ BackwardCall call) {
  extern __shared__ __align__(1024) unsigned char memory[];
  wait_on_dependent_grids();
  launch_dependent_grids();
  if (blockIdx.x < call.row_blocks) return dq_block<T, D, masking>(call, memory);
  const unsigned block = blockIdx.x - call.row_blocks;
  if constexpr (tuning::backward_together(D)) {
    dkv_block<T, D, masking, true, true>(call, block, memory);
  } else if (block < call.key_blocks) {
    dkv_block<T, D, masking, true, false>(call, block, memory);
  } else {
    dkv_block<T, D, masking, false, true>(call, block - call.key_blocks, memory);
  }
}

template <class T>
void run_backward(const BackwardPlan& plan, const BackwardScratch& scratch, FaultBox* box, int device,
                  cudaStream_t stream) {
  BackwardCall call = begin_backward<T>(plan, scratch, box, device, stream);
  const Plan& forward = plan.forward;
  call.aligned = is_aligned(forward) && is_aligned(plan.d_out, forward.batch) && is_aligned(plan.d_q, forward.batch);
  for (int k = 0; k < forward.segment_count; ++k) {
    call.aligned =
        call.aligned && is_aligned(plan.d_keys[k], forward.batch) && is_aligned(plan.d_values[k], forward.batch);
  }
  with_head_dim(forward.head_dim, [&](auto padded) {
    constexpr int D = decltype(padded)::value;
    constexpr int bytes = BackwardLayout<D>::bytes;
    if (bytes > cuda_machine(device).shared_bytes) {
      throw Error(ErrorKind::value,
                  concat("attention_backward: a head dim of ", forward.head_dim, " needs ", bytes,
                         " bytes of shared memory in a block, and this GPU has ", cuda_machine(device).shared_bytes));
    }
    const bool of_keys = wants(plan.d_keys) || wants(plan.d_values);
    const std::int64_t blocks = set_grid(call, backward_rows, of_keys ? (tuning::backward_together(D) ? 1 : 2) : 0);
    switch (masking_of(forward)) {
      case Masking::none:
        launch<&attention_backward_kernel<T, D, Masking::none>>(blocks, backward_threads, bytes, call, device, stream);
        break;
      case Masking::simple:
        launch<&attention_backward_kernel<T, D, Masking::simple>>(blocks, backward_threads, bytes, call, device,
                                                                  stream);
        break;
      case Masking::general:
        launch<&attention_backward_kernel<T, D, Masking::general>>(blocks, backward_threads, bytes, call, device,
                                                                   stream);
        break;
    }
    if (of_keys && scratch.key_split > 1) {
      call.padded_head_dim = D;
      const std::int64_t sums = 2 * forward.batch * forward.kv_heads * forward.keys;
      launch<&attention_sum_kernel<T>>(divide_up(sums * warp_size, delta_threads), delta_threads, 0, call, device,
                                       stream);
    }
  });
}

}  // namespace
}  // namespace robocache::attention_op
