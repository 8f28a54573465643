// d_q: a block keeps tiles of q and d_out and goes through the keys that any of its rows sees by its position.
#pragma once

#include "ops/attention/cuda/backward/tiles.h"

namespace robocache::attention_op {
namespace {

template <class T, int D, Masking masking>
__device__ void dq_block(const BackwardCall& call, unsigned char* memory) {
  using L = BackwardLayout<D>;
  constexpr int chunk = L::chunk;
  const Plan& plan = call.plan.forward;
  const WarpCoord coord(L::columns);
  Rows rows;
  if (!set_rows<T>(plan, call.row_scheduler, call.plan.d_q, nullptr, backward_rows, rows)) return;
  const Sequence& s = rows.s;
  const KeyRange range = keys_for(plan, rows, backward_rows);
  const auto begin = static_cast<int>(range.first);
  const auto end = static_cast<int>(range.end);

  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  auto* const row_states = reinterpret_cast<RowState*>(memory + L::state);
  KeyLoader<T, D, PaddedTile<D>> loader(plan, s, rows.kv_head, call.aligned);
  const auto load_chunk = [&](int number) {
    const int first = begin + number * chunk;
    if (first < end) {
      loader.load(first, end, L::stage_tile(shared, number, 0), L::stage_tile(shared, number, 1), chunk);
    }
    cp_async_commit_group();
  };
  load_rows<T, D>(plan, plan.q, rows, L::kept_tile(shared, 0), backward_rows, call.aligned);
  load_rows<T, D>(plan, call.plan.d_out, rows, L::kept_tile(shared, 1), backward_rows, call.aligned);
  if (threadIdx.x < backward_rows) {
    const auto row = static_cast<int>(threadIdx.x);
    load_row_state(call, rows, row, row_states[row]);
  }
  load_chunk(0);
  RowState state[2];
  const float scale = static_cast<float>(plan.scale) * log2_e;
  float sums[D / 8][4] = {};
  for (int number = 0; begin + number * chunk < end; ++number) {
    const int first = begin + number * chunk + coord.column;
    std::int32_t key_rank = 0;
    if constexpr (masking != Masking::none) key_rank = KeyMask(plan, s, first + coord.lane, end).rank_or_hidden();
    cp_async_wait_group<0>();
    if (number == 0 && threadIdx.x < backward_rows) row_states[threadIdx.x].finish_load();
    __syncthreads();
    if (number == 0) {
#pragma unroll
      for (int k = 0; k < 2; ++k) state[k] = row_states[coord.row + coord.lane / 4 + k * 8];
    }
    load_chunk(number + 1);
    float scores[L::columns / 8][4] = {};
    float weights[L::columns / 8][4] = {};
    mma_rows<T, D>(scores, coord, L::kept_tile(shared, 0), L::stage_tile(shared, number, 0));
    mma_rows<T, D>(weights, coord, L::kept_tile(shared, 1), L::stage_tile(shared, number, 1));
    std::uint32_t seen = 0;
#pragma unroll
    for (int n = 0; n < L::columns / 8; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int column = n * 8 + coord.lane % 4 * 2 + k % 2;
        const std::int32_t key = masking == Masking::none ? 0 : __shfl_sync(whole_warp, key_rank, column);
        const RowState& mine = state[k / 2];
        const int row = coord.row + coord.lane / 4 + k / 2 * 8;
        const bool here = sees<masking>(plan, rows, row, mine, key, first + column);
        const float weight = probability(scores[n][k], scale, mine.lse);
        weights[n][k] = here ? weight * (weights[n][k] - mine.delta) : 0.0f;
        if (here) seen |= 1u << (n * 2 + k % 2);
      }
    }
    mma_weights<T, D>(sums, weights, coord, L::stage_tile(shared, number, 0), any_row_bits<masking>(seen));
  }
  cp_async_wait_group<0>();
  if (!reduce_slices<D>(sums, coord, memory)) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = coord.row + coord.lane / 4 + 8 * half;
    if (!rows.exists(row)) continue;
    T* const to = static_cast<T*>(call.plan.d_q.data) + rows.offset(call.plan.d_q, row);
    store_row<T, D>(to, sums, half, static_cast<float>(plan.scale), static_cast<int>(plan.head_dim), call.aligned);
  }
}

}  // namespace
}  // namespace robocache::attention_op
