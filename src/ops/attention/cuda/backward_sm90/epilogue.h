// The epilogue of the sm90 backward pass.
#pragma once

#include "ops/attention/cuda/backward_sm90/layout.h"
#include "ops/attention/cuda/store.h"

namespace robocache::attention_op {
namespace {

// Stores a consumer warpgroup's rows of one gradient; of a key block with key_split > 1, its partial sums.
template <class T, int D>
__device__ void store_gradient(const Sm90BackwardCall& all, const Sm90WorkTile& work, int group, const Vectors& to,
                               bool of_values, const float (&sums)[D / 8][4], float factor) {
  const BackwardCall& call = all.call;
  const Plan& plan = call.plan.forward;
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const int row = work.first + group * sm90_rows + static_cast<int>(threadIdx.x / warp_size % 4) * warp_rows + lane / 4;
  const int end = work.first + work.rows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int here = row + 8 * half;
    if (work.of_keys && call.scratch.key_split > 1) {
      if (here >= end) continue;
      const std::int64_t part = (of_values ? call.scratch.key_split : 0) + work.rank;
      const std::int64_t place =
          ((part * plan.batch + work.sequence) * plan.kv_heads + work.kv_head) * plan.keys + here;
      float* const partial = call.scratch.partials + place * D + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        *reinterpret_cast<float2*>(partial + n * 8) = make_float2(sums[n][2 * half], sums[n][2 * half + 1]);
      }
    } else if (to.data != nullptr) {
      T* const at = static_cast<T*>(to.data) +
                    offset_of(to, work.sequence, work.of_keys ? work.kv_head : work.head, min(here, end - 1));
      store_aligned_row<T, D>(at, sums, half, factor, static_cast<int>(plan.head_dim), here < end);
    }
  }
}

}  // namespace
}  // namespace robocache::attention_op
