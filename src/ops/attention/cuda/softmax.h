// Online softmax of a warp's 16 rows: their accumulators are rescaled with each tile to the new row maximum.
#pragma once

#include "gpu/warp.h"
#include "ops/attention/cuda/exp2.h"

namespace robocache::attention_op {
namespace {

// What a thread accumulates of its warp's 16 rows: rows lane / 4 and lane / 4 + 8.
template <int D>
struct Accumulators {
  float out[D / 8][4] = {};
  float row_max[2], row_sum[2] = {0, 0};  // in units of log2; the sum is of this thread's columns only

  __device__ Accumulators() { row_max[0] = row_max[1] = minus_infinity(); }

  // Rescales the output to the new row maximum. Every tile does this, so that no branch depends on the data.
  __device__ void rescale(const float (&factors)[2]) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) out[n][k] *= factors[k / 2];
    }
  }
};

// Updates the row maximum by scores, -inf where a key is masked, and rescales the row sum. factors: what the output is to be
// rescaled by. bases: what exponentiate() subtracts; 0 where a row has seen nothing, so that it gets no NaN.
template <int D, int count>
__device__ void update_row_max(const float (&scores)[count][4], Accumulators<D>& acc, float scale, float (&factors)[2],
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
    now = fmaxf(acc.row_max[half], now * scale);
    bases[half] = now == minus_infinity() ? 0.0f : now;
    factors[half] = exp2_approx(acc.row_max[half] - bases[half]);
    acc.row_max[half] = now;
    acc.row_sum[half] *= factors[half];
  }
}
// Turns the scores [first, end) of each row into weights, and adds them to the row sum.
template <int first, int end, int D, int count>
__device__ void exponentiate(float (&scores)[count][4], Accumulators<D>& acc, float scale, const float (&bases)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum[4] = {acc.row_sum[half], 0, 0, 0};
#pragma unroll
    for (int n = first; n < end; ++n) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float weight = exp2_approx(fmaf(scores[n][2 * half + k], scale, -bases[half]));
        scores[n][2 * half + k] = weight;
        sum[(2 * n + k) % 4] += weight;
      }
    }
    acc.row_sum[half] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
}
template <int D, int count>
__device__ void online_softmax(float (&scores)[count][4], Accumulators<D>& acc, float scale, float (&factors)[2]) {
  float bases[2];
  update_row_max(scores, acc, scale, factors, bases);
  exponentiate<0, count>(scores, acc, scale, bases);
}

// Turns the row sum of a thread's columns into that of the whole row.
template <int D>
__device__ void reduce_row_sum(Accumulators<D>& acc) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    acc.row_sum[half] += __shfl_xor_sync(whole_warp, acc.row_sum[half], 1);
    acc.row_sum[half] += __shfl_xor_sync(whole_warp, acc.row_sum[half], 2);
  }
}

__device__ float log_sum_exp(float row_max, float row_sum) {
  return row_sum == 0 ? minus_infinity() : fmaf(row_max, ln_2, logf(row_sum));
}

}  // namespace
}  // namespace robocache::attention_op
