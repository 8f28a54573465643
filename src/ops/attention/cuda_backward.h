// The gradients of attention of half types on the tensor cores.
//
// First delta, of each row the sum of d_out * out. Then blocks of rows go through the keys for d_q, and blocks of keys
// through the rows, once for d_values and once for d_keys. Each gradient is written by one block, which adds in a fixed
// order: no atomics.
#pragma once

#include "core/text.h"
#include "ops/attention/cuda_call.h"
#include "ops/attention/cuda_delta.h"
#include "ops/attention/cuda_tiles.h"

namespace robocache::attention_op {
namespace {

constexpr int backward_rows = tuning::backward_warps * warp_rows;

// Shared memory: two tiles that a block keeps, then two stages of two tiles, and what is known of the rows of each stage.
struct RowFacts {
  float lse, delta;  // lse in units of log2
  QueryView view;
};
template <int D>
struct BackwardLayout {
  static constexpr int chunk = tuning::backward_chunk(D);
  static constexpr int kept = backward_rows * Tile<D>::pitch;
  static constexpr int part = chunk * Tile<D>::pitch;
  static constexpr int facts = 2 * kept + 4 * part;
  static constexpr int bytes = facts + 2 * chunk * static_cast<int>(sizeof(RowFacts));

  static __device__ Tile<D> kept_tile(std::uint32_t shared, int which) { return {shared + which * kept}; }
  static __device__ Tile<D> part_tile(std::uint32_t shared, int number, int which) {
    return {shared + 2 * kept + (number % 2 * 2 + which) * part};
  }
};

// c[n] += a b: rows [row, row + 16) of `a` times rows of `b`, both along D.
template <class T, int D, int count>
__device__ void multiply_rows(float (&c)[count][4], const Tile<D>& a, int row, const Tile<D>& b) {
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    std::uint32_t left[4];
    load_matrices(left, a.left(row, d * 16));
#pragma unroll
    for (int n = 0; n < count / 2; ++n) {
      std::uint32_t right[4];
      load_matrices(right, b.right(n * 16, d * 16));
      multiply<T>(c[2 * n], left, right[0], right[1]);
      multiply<T>(c[2 * n + 1], left, right[2], right[3]);
    }
  }
}

// c[d] += weights times the rows of `b`. Of rows that `seen` (two bits for each eight of them) has not, nothing is taken.
template <class T, int D, int count>
__device__ void multiply_weights(float (&c)[D / 8][4], const float (&weights)[count][4], const Tile<D>& b,
                                 std::uint32_t seen) {
#pragma unroll
  for (int n = 0; n < count / 2; ++n) {
    const std::uint32_t left[4] = {
        pack<T>(weights[2 * n][0], weights[2 * n][1]), pack<T>(weights[2 * n][2], weights[2 * n][3]),
        pack<T>(weights[2 * n + 1][0], weights[2 * n + 1][1]), pack<T>(weights[2 * n + 1][2], weights[2 * n + 1][3])};
    std::uint32_t real[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      real[k] = halves_of(seen >> (4 * n + 2 * k));
    }
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      std::uint32_t right[4];
      load_transposed(right, b.left(n * 16, d * 16));
      multiply<T>(c[2 * d], left, right[0] & real[0], right[1] & real[1]);
      multiply<T>(c[2 * d + 1], left, right[2] & real[0], right[3] & real[1]);
    }
  }
}

__device__ RowFacts facts_of(const BackwardCall& call, const Rows& rows, int row) {
  RowFacts facts{0, 0, query_view(call.plan.forward, rows, row)};
  if (!rows.exists(row)) return facts;
  const std::int64_t place = rows.lse_offset(call.plan.forward, row);
  facts.lse = call.plan.forward.lse[place] * log2_e;
  facts.delta = call.delta[place];
  if (facts.lse == minus_infinity()) facts.view.end = 0;  // it saw nothing, or nothing but -inf
  return facts;
}

template <class T, int D>
__global__ void __launch_bounds__(tuning::backward_warps* warp_size)
    attention_dq_kernel(const __grid_constant__ BackwardCall call) {
  using L = BackwardLayout<D>;
  constexpr int chunk = L::chunk;
  extern __shared__ __align__(1024) unsigned char memory[];
  const Plan& plan = call.plan.forward;
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const int warp_row = static_cast<int>(threadIdx.x / warp_size) * warp_rows;
  after_earlier_work();
  let_next_begin();
  Rows rows;
  if (!set_rows<T>(plan, call.units, call.plan.d_q, nullptr, backward_rows, rows)) return;
  const Sequence& s = rows.s;
  const KeyRange range = keys_for(plan, rows, backward_rows);
  const auto begin = static_cast<int>(range.first);
  const auto end = static_cast<int>(range.end);

  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  KeySource<T, D, Tile<D>> source(plan, s, rows.kv_head, call.aligned);
  const auto fetch = [&](int number) {
    const int first = begin + number * chunk;
    if (first < end) {
      source.copy(first, end, L::part_tile(shared, number, 0), L::part_tile(shared, number, 1), chunk);
    }
    end_group();
  };
  copy_rows<T, D>(plan, plan.q, rows, L::kept_tile(shared, 0), backward_rows, call.aligned);
  copy_rows<T, D>(plan, call.plan.d_out, rows, L::kept_tile(shared, 1), backward_rows, call.aligned);
  fetch(0);
  const RowFacts facts[2] = {facts_of(call, rows, warp_row + lane / 4), facts_of(call, rows, warp_row + lane / 4 + 8)};
  const float scale = static_cast<float>(plan.scale) * log2_e;
  float sums[D / 8][4] = {};
  for (int number = 0; begin + number * chunk < end; ++number) {
    const int first = begin + number * chunk;
    std::int32_t key_views[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) key_views[k] = KeyView(plan, s, first + lane + k * warp_size, end).view();
    wait_for_groups<0>();
    __syncthreads();
    fetch(number + 1);
    float scores[chunk / 8][4] = {};
    float weights[chunk / 8][4] = {};
    multiply_rows<T, D>(scores, L::kept_tile(shared, 0), warp_row, L::part_tile(shared, number, 0));
    multiply_rows<T, D>(weights, L::kept_tile(shared, 1), warp_row, L::part_tile(shared, number, 1));
    std::uint32_t seen = 0;
#pragma unroll
    for (int n = 0; n < chunk / 8; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int column = n * 8 + lane % 4 * 2 + k % 2;
        const std::int32_t key = __shfl_sync(whole_warp, key_views[n / 4], column % warp_size);
        const RowFacts& mine = facts[k / 2];
        const bool here = sees(mine.view, key, first + column) &&
                          is_allowed(plan, rows, warp_row + lane / 4 + k / 2 * 8, first + column);
        const float weight = power_of_two(fmaf(scores[n][k], scale, -mine.lse));
        weights[n][k] = here ? weight * (weights[n][k] - mine.delta) : 0.0f;
        if (here) seen |= 1u << (n * 2 + k % 2);
      }
    }
    multiply_weights<T, D>(sums, weights, L::part_tile(shared, number, 0), of_any_row(seen));
  }
  wait_for_groups<0>();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp_row + lane / 4 + 8 * half;
    if (!rows.exists(row)) continue;
    T* const to = static_cast<T*>(call.plan.d_q.data) + rows.offset(call.plan.d_q, row);
    store_row<T, D>(to, sums, half, static_cast<float>(plan.scale), static_cast<int>(plan.head_dim), call.aligned);
  }
}

// Rows here are keys. of_keys: d_keys, else d_values.
template <class T, int D, bool of_keys>
__global__ void __launch_bounds__(tuning::backward_warps* warp_size)
    attention_dkv_kernel(const __grid_constant__ BackwardCall call) {
  using L = BackwardLayout<D>;
  constexpr int chunk = L::chunk;
  extern __shared__ __align__(1024) unsigned char memory[];
  const Plan& plan = call.plan.forward;
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const int warp_row = static_cast<int>(threadIdx.x / warp_size) * warp_rows;
  after_earlier_work();
  let_next_begin();
  const Vectors* const written = of_keys ? call.plan.d_keys : call.plan.d_values;
  KeyBlock block;
  if (!set_keys<T>(call, written[0], backward_rows, block)) return;
  const Sequence& s = block.s;

  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  auto* const all_facts = reinterpret_cast<RowFacts*>(memory + L::facts);
  Rows rows = block.rows;
  const auto fetch = [&](int number) {
    rows.first = block.first_row + number * chunk;
    if (rows.first < block.end_row) {
      copy_rows<T, D>(plan, plan.q, rows, L::part_tile(shared, number, 0), chunk, call.aligned);
      copy_rows<T, D>(plan, call.plan.d_out, rows, L::part_tile(shared, number, 1), chunk, call.aligned);
      if (threadIdx.x < chunk) {
        const auto row = static_cast<int>(threadIdx.x);
        all_facts[number % 2 * chunk + row] = facts_of(call, rows, row);
      }
    }
    end_group();
  };
  KeySource<T, D, Tile<D>>(plan, s, rows.kv_head, call.aligned)
      .copy(block.first_key, static_cast<int>(s.keys), L::kept_tile(shared, 0), L::kept_tile(shared, 1), backward_rows);
  fetch(0);
  const int keys[2] = {block.first_key + warp_row + lane / 4, block.first_key + warp_row + lane / 4 + 8};
  const auto all = static_cast<int>(s.keys);
  const std::int32_t views[2] = {KeyView(plan, s, keys[0], all).view(), KeyView(plan, s, keys[1], all).view()};
  const float scale = static_cast<float>(plan.scale) * log2_e;
  float sums[D / 8][4] = {};
  for (int number = 0; block.first_row + number * chunk < block.end_row; ++number) {
    wait_for_groups<0>();
    __syncthreads();
    fetch(number + 1);
    rows.first = block.first_row + number * chunk;
    float scores[chunk / 8][4] = {};
    float weights[chunk / 8][4] = {};
    multiply_rows<T, D>(scores, L::kept_tile(shared, 0), warp_row, L::part_tile(shared, number, 0));
    if constexpr (of_keys) {
      multiply_rows<T, D>(weights, L::kept_tile(shared, 1), warp_row, L::part_tile(shared, number, 1));
    }
    std::uint32_t seen = 0;
#pragma unroll
    for (int n = 0; n < chunk / 8; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int row = n * 8 + lane % 4 * 2 + k % 2;
        const RowFacts& facts = all_facts[number % 2 * chunk + row];
        const bool here = sees(facts.view, views[k / 2], keys[k / 2]) && is_allowed(plan, rows, row, keys[k / 2]);
        const float weight = power_of_two(fmaf(scores[n][k], scale, -facts.lse));
        weights[n][k] = here ? (of_keys ? weight * (weights[n][k] - facts.delta) : weight) : 0.0f;
        if (here) seen |= 1u << (n * 2 + k % 2);
      }
    }
    multiply_weights<T, D>(sums, weights, L::part_tile(shared, number, of_keys ? 0 : 1), of_any_row(seen));
  }
  wait_for_groups<0>();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    T* const to = key_row<T>(plan, written, block, keys[half]);
    if (to == nullptr) continue;
    const float factor = of_keys ? static_cast<float>(plan.scale) : 1.0f;
    store_row<T, D>(to, sums, half, factor, static_cast<int>(plan.head_dim), call.aligned);
  }
}

template <class T>
void run_half_backward(const BackwardPlan& plan, float* delta, FaultBox* box, int device, cudaStream_t stream) {
  BackwardCall call = begin_backward<T>(plan, delta, box, device, stream);
  call.aligned = is_aligned(plan.forward) && is_aligned(plan.d_out, plan.forward.batch) &&
                 is_aligned(plan.d_q, plan.forward.batch);
  for (int k = 0; k < plan.forward.segment_count; ++k) {
    call.aligned = call.aligned && is_aligned(plan.d_keys[k], plan.forward.batch) &&
                   is_aligned(plan.d_values[k], plan.forward.batch);
  }
  constexpr int threads = tuning::backward_warps * warp_size;
  with_head_dim(plan.forward.head_dim, [&](auto padded) {
    constexpr int D = decltype(padded)::value;
    constexpr int bytes = BackwardLayout<D>::bytes;
    if (bytes > cuda_machine(device).shared_bytes) {
      throw Error(ErrorKind::value,
                  concat("attention_backward: a head dim of ", plan.forward.head_dim, " needs ", bytes,
                         " bytes of shared memory in a block, and this GPU has ", cuda_machine(device).shared_bytes));
    }
    if (plan.d_q.data != nullptr) {
      launch<&attention_dq_kernel<T, D>>(cut_rows(call, backward_rows), threads, bytes, call, device, stream);
    }
    const std::int64_t blocks = cut_keys(call, backward_rows);
    if (wants(plan.d_values)) {
      launch<&attention_dkv_kernel<T, D, false>>(blocks, threads, bytes, call, device, stream);
    }
    if (wants(plan.d_keys)) launch<&attention_dkv_kernel<T, D, true>>(blocks, threads, bytes, call, device, stream);
  });
}

}  // namespace
}  // namespace robocache::attention_op
