// The kernel before the mainloop: lse and delta of every row, in the order in which TMA loads them.
#pragma once

#include "ops/attention/cuda/backward_sm90/layout.h"
#include "ops/attention/cuda/exp2.h"

namespace robocache::attention_op {
namespace {

// lse is in units of log2. Rows are padded to whole tiles: lse is +inf and delta 0 behind the last row, and for a row that sees no
// key, so that its P is 0. `lanes` lanes share a row.
template <class T, int lanes>
__global__ void __launch_bounds__(delta_threads)
    attention_row_statistics_kernel(const __grid_constant__ Sm90BackwardCall all) {
  const BackwardCall& call = all.call;
  const Plan& plan = call.plan.forward;
  wait_on_dependent_grids();
  launch_dependent_grids();
  check_data(plan, call.box);
  const unsigned padded = static_cast<unsigned>(all.query_tiles) * sm90_rows;
  const unsigned number = (blockIdx.x * delta_threads + threadIdx.x) / lanes;
  const unsigned n = number % padded;
  const unsigned head = number / padded;
  const unsigned h = head % static_cast<unsigned>(plan.heads);
  const unsigned b = head / static_cast<unsigned>(plan.heads);
  const bool exists = b < plan.batch;
  const bool real = exists && n < plan.queries;
  const unsigned d = threadIdx.x % lanes * 8;
  float sum = 0;
  if (real && d < plan.head_dim) {
    const T* const out = static_cast<const T*>(plan.out.data) + offset_of(plan.out, b, h, n) + d;
    const T* const d_out = static_cast<const T*>(call.plan.d_out.data) + offset_of(call.plan.d_out, b, h, n) + d;
    T left[8], right[8];
    *reinterpret_cast<uint4*>(left) = *reinterpret_cast<const uint4*>(out);
    *reinterpret_cast<uint4*>(right) = *reinterpret_cast<const uint4*>(d_out);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum = fmaf(widen(left[k]), widen(right[k]), sum);
  }
#pragma unroll
  for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(whole_warp, sum, step);
  if (!exists || threadIdx.x % lanes != 0) return;
  float lse = -minus_infinity();
  if (real) {
    const std::int64_t place = b * plan.lse_batch + h * plan.lse_head + n;
    if (call.plan.d_lse != nullptr) sum -= call.plan.d_lse[place];
    lse = plan.lse[place] * log2_e;
    if (lse == minus_infinity()) lse = -minus_infinity();
  }
  all.lse[number] = lse;
  call.scratch.delta[number] = lse == -minus_infinity() ? 0.0f : sum;
}

}  // namespace
}  // namespace robocache::attention_op
