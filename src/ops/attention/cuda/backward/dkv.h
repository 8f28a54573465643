// d_keys and d_values: a block keeps tiles of keys and values and goes through the rows that see any of them by their position.
#pragma once

#include "ops/attention/cuda/backward/tiles.h"

namespace robocache::attention_op {
namespace {

// Where the partial sums of key j of one rank are, in the scratch of d_keys or d_values.
__device__ std::int64_t partial_of(const BackwardCall& call, bool of_keys, int rank, const KeyBlock& block,
                                   std::int64_t j) {
  const Plan& plan = call.plan.forward;
  const std::int64_t group = ((of_keys ? 0 : call.scratch.key_split) + rank) * plan.batch + block.s.number;
  return (group * plan.kv_heads + block.rows.kv_head) * plan.keys + j;
}

// Stores what a block has summed for its keys: the gradient, or with key_split > 1 a partial sum in the scratch.
template <class T, int D>
__device__ void store_keys(const BackwardCall& call, const KeyBlock& block, bool of_keys, float (&sums)[D / 8][4],
                           const WarpCoord& coord) {
  const Plan& plan = call.plan.forward;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int j = block.first_key + coord.row + coord.lane / 4 + 8 * half;
    if (j >= block.s.keys) {  // behind a cache's length there are no keys
#pragma unroll
      for (int n = 0; n < D / 8; ++n) sums[n][2 * half] = sums[n][2 * half + 1] = 0;
    }
    if (call.scratch.key_split > 1) {
      if (j >= plan.keys) continue;
      float* const to =
          call.scratch.partials + partial_of(call, of_keys, block.rank, block, j) * D + coord.lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        *reinterpret_cast<float2*>(to + n * 8) = make_float2(sums[n][2 * half], sums[n][2 * half + 1]);
      }
    } else if (T* const to = key_row<T>(plan, of_keys ? call.plan.d_keys : call.plan.d_values, block, j)) {
      const float factor = of_keys ? static_cast<float>(plan.scale) : 1.0f;
      store_row<T, D>(to, sums, half, factor, static_cast<int>(plan.head_dim), call.aligned);
    }
  }
}

// Rows of the products are keys here.
template <class T, int D, Masking masking, bool of_keys, bool of_values>
__device__ void dkv_block(const BackwardCall& call, std::uint32_t block_number, unsigned char* memory) {
  using L = BackwardLayout<D>;
  constexpr int chunk = L::chunk;
  const Plan& plan = call.plan.forward;
  const WarpCoord coord(L::columns);
  KeyBlock block;
  if (!set_keys<T>(call, backward_rows, block_number, block)) return;
  const Sequence& s = block.s;
  // The rows of this block, one of key_split that share the keys.
  const int chunks = divide_up(divide_up(block.end_row - block.first_row, chunk), call.scratch.key_split);
  const int begin = block.first_row + block.rank * chunks * chunk;
  const int end = min(block.end_row, begin + chunks * chunk);

  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  auto* const row_states = reinterpret_cast<RowState*>(memory + L::state);
  Rows rows = block.rows;
  const auto load_chunk = [&](int number) {
    rows.first = begin + number * chunk;
    if (rows.first < end) {
      load_rows<T, D>(plan, plan.q, rows, L::stage_tile(shared, number, 0), chunk, call.aligned);
      load_rows<T, D>(plan, call.plan.d_out, rows, L::stage_tile(shared, number, 1), chunk, call.aligned);
      if (threadIdx.x < chunk) {
        const auto row = static_cast<int>(threadIdx.x);
        load_row_state(call, rows, row, row_states[number % 2 * chunk + row]);
      }
    }
    cp_async_commit_group();
  };
  KeyLoader<T, D, PaddedTile<D>>(plan, s, rows.kv_head, call.aligned)
      .load(block.first_key, static_cast<int>(s.keys), L::kept_tile(shared, 0), L::kept_tile(shared, 1), backward_rows);
  load_chunk(0);
  int keys[2];
  std::int32_t key_ranks[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    keys[k] = block.first_key + coord.row + coord.lane / 4 + 8 * k;
    key_ranks[k] = masking == Masking::none ? 0 : KeyMask(plan, s, keys[k], static_cast<int>(s.keys)).rank_or_hidden();
  }
  const float scale = static_cast<float>(plan.scale) * log2_e;
  float key_sums[of_keys ? D / 8 : 1][4] = {};
  float value_sums[of_values ? D / 8 : 1][4] = {};
  for (int number = 0; begin + number * chunk < end; ++number) {
    cp_async_wait_group<0>();
    if (threadIdx.x < chunk) row_states[number % 2 * chunk + threadIdx.x].finish_load();
    __syncthreads();
    load_chunk(number + 1);
    rows.first = begin + number * chunk;
    float weights[L::columns / 8][4] = {};
    mma_rows<T, D>(weights, coord, L::kept_tile(shared, 0), L::stage_tile(shared, number, 0));
    std::uint32_t seen = 0;
#pragma unroll
    for (int n = 0; n < L::columns / 8; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int row = coord.column + n * 8 + coord.lane % 4 * 2 + k % 2;
        const RowState& state = row_states[number % 2 * chunk + row];
        const bool here = sees<masking>(plan, rows, row, state, key_ranks[k / 2], keys[k / 2]);
        const float weight = probability(weights[n][k], scale, state.lse);
        weights[n][k] = here ? weight : 0.0f;
        if (here) seen |= 1u << (n * 2 + k % 2);
      }
    }
    seen = any_row_bits<masking>(seen);
    if constexpr (of_values) {
      mma_weights<T, D>(value_sums, weights, coord, L::stage_tile(shared, number, 1), seen);
    }
    if constexpr (of_keys) {
      float slopes[L::columns / 8][4] = {};
      mma_rows<T, D>(slopes, coord, L::kept_tile(shared, 1), L::stage_tile(shared, number, 1));
#pragma unroll
      for (int n = 0; n < L::columns / 8; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int row = coord.column + n * 8 + coord.lane % 4 * 2 + k % 2;
          const float slope = weights[n][k] * (slopes[n][k] - row_states[number % 2 * chunk + row].delta);
          // With a mask, a row that is not seen may hold NaN.
          weights[n][k] = masking == Masking::none || weights[n][k] != 0.0f ? slope : 0.0f;
        }
      }
      mma_weights<T, D>(key_sums, weights, coord, L::stage_tile(shared, number, 0), seen);
    }
  }
  cp_async_wait_group<0>();
  if constexpr (of_keys) {
    if (reduce_slices<D>(key_sums, coord, memory)) store_keys<T, D>(call, block, true, key_sums, coord);
  }
  if constexpr (of_values) {
    if (reduce_slices<D>(value_sums, coord, memory)) store_keys<T, D>(call, block, false, value_sums, coord);
  }
}

// Adds the partial sums of each key's gradients in the order of the rows. One warp for each key of d_keys, then of d_values.
template <class T>
__global__ void __launch_bounds__(delta_threads) attention_sum_kernel(const __grid_constant__ BackwardCall call) {
  const Plan& plan = call.plan.forward;
  wait_on_dependent_grids();
  launch_dependent_grids();
  const std::int64_t number = (static_cast<std::int64_t>(blockIdx.x) * delta_threads + threadIdx.x) / warp_size;
  const std::int64_t keys = plan.batch * plan.kv_heads * plan.keys;
  if (number >= 2 * keys) return;
  const bool of_keys = number < keys;
  const std::int64_t key = of_keys ? number : number - keys;
  KeyBlock block;
  block.s = sequence_of(plan, key / plan.keys / plan.kv_heads);
  block.rows.kv_head = static_cast<int>(key / plan.keys % plan.kv_heads);
  const std::int64_t j = key % plan.keys;
  T* const to = key_row<T>(plan, of_keys ? call.plan.d_keys : call.plan.d_values, block, j);
  if (to == nullptr) return;
  for (auto d = static_cast<int>(threadIdx.x % warp_size) * 2; d < plan.head_dim; d += 2 * warp_size) {
    float2 sum{};
    for (int rank = 0; rank < call.scratch.key_split; ++rank) {
      const std::int64_t place = partial_of(call, of_keys, rank, block, j) * call.padded_head_dim + d;
      const float2 part = *reinterpret_cast<const float2*>(call.scratch.partials + place);
      sum.x += part.x;
      sum.y += part.y;
    }
    const float factor = of_keys ? static_cast<float>(plan.scale) : 1.0f;
    store_pair(to + d, call.aligned, sum.x * factor, sum.y * factor);
  }
}

}  // namespace
}  // namespace robocache::attention_op
