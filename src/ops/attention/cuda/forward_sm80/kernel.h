// Attention of half types by mma.sync: GPUs before Hopper, and calls that the sm90 kernel does not take.
//
// A warp has 16 rows. A block has row_warps along the rows times key_warps that slice its keys; the keys come in stages, one
// of which is used while the others are loaded by cp.async or TMA. A cluster splits the keys further (split-K). The epilogue
// merges partial results in a fixed order: one launch, no scratch, the same bits every time.
#pragma once

#include "ops/attention/cuda/epilogue.h"
#include "ops/attention/cuda/forward_sm80/stages.h"
#include "ops/attention/cuda/forward_sm80/tile.h"

namespace robocache::attention_op {
namespace {

template <class T, int D, Masking masking>
__global__ void __launch_bounds__(tuning::max_warps(D) * warp_size)
    attention_sm80_kernel(const __grid_constant__ ForwardCall call) {
  constexpr int keys = tuning::keys(D, false);  // of a warp and stage
  constexpr bool keep_queries = D <= 128;       // in registers
  constexpr bool masked = masking != Masking::none;
  extern __shared__ __align__(1024) unsigned char memory[];
  const Plan& plan = call.plan;
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const auto warp = static_cast<int>(threadIdx.x / warp_size);
  int key_slice = 0;
  int row_warp = warp;
  for (; row_warp >= call.row_warps; row_warp -= call.row_warps) ++key_slice;
  const int warp_row = row_warp * warp_rows;
  const int block_rows = call.row_warps * warp_rows;
  const int stage_keys = call.key_warps * keys;
  const SharedLayout layout(D, false, call.row_warps, call.key_warps, call.stages, call.scheduler.split);
  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  using Stages = KeyStages<T, D, keys>;
  if (call.tma_keys) Stages::init(shared + layout.mbarriers());
  Rows rows;
  if (plan.is_packed() || plan.lengths.data != nullptr) wait_on_dependent_grids();
  const bool has_rows = set_rows<T>(plan, call.scheduler, plan.out, plan.lse, block_rows, rows);
  wait_on_dependent_grids();
  launch_dependent_grids();
  if (call.box != nullptr) check_data_slow_path(plan, call.box);
  if (!has_rows) return;  // as its whole cluster does
  const Sequence& s = rows.s;
  const PaddedTile<D> queries{shared + layout.stages};
  load_rows<T, D>(plan, plan.q, rows, queries, block_rows, call.aligned);

  int begin = 0;
  auto end = static_cast<int>(s.keys);
  if constexpr (masked) set_visible_keys(plan, rows, block_rows, begin, end);
  split_keys(call.scheduler, rows.rank, warp_rows, begin, end);

  Stages stages(call, rows, shared, shared + layout.mbarriers(), begin, end);
#pragma unroll
  for (int k = 0; k < tuning::stages(D) - 1; ++k) stages.load_next();

  const unsigned zero_keys = call.zero_keys[row_warp];  // of 32 keys, those whose masked values this warp zeroes
  QueryMask query_masks[2];
  std::int32_t highest_rank = most_rank;  // of all rows of the block
  KeyMask next_keys[keys / warp_size];
  if constexpr (masked) {
    prefetch_keys(next_keys, plan, s, begin + key_slice * keys, end);
    load_query_masks(query_masks, plan, rows, warp_row, end);
    if constexpr (masking == Masking::simple) highest_rank = highest_query_rank(plan, rows, block_rows);
  }

  // The row maximum is taken of unscaled scores, so the scale must not be negative: otherwise the scores are negated.
  const float scale = fabsf(static_cast<float>(plan.scale)) * log2_e;
  const bool negative = plan.scale < 0;
  Accumulators<D> acc;
  std::uint32_t query_fragments[keep_queries ? D / 16 : 1][4];
  int stage = 0;
  for (int stage_first = begin; stage_first < end; stage_first += stage_keys) {
    cp_async_wait_group<tuning::stages(D) - 2>();
    stages.wait(stage, stage_first);
    __syncthreads();  // this stage is full, and all warps have read the one before
    stages.load_next();
    const auto keys_here = stages.tile(stage, false, key_slice);
    const auto values_here = stages.tile(stage, true, key_slice);
    stage = stage + 1 == tuning::stages(D) ? 0 : stage + 1;
    if (keep_queries && stage_first == begin) load_query_fragments(query_fragments, queries, warp_row);
    const int first = stage_first + key_slice * keys;
    if (first >= end) continue;  // the same for all warps of this key slice
    std::int32_t key_ranks[keys / warp_size];
    if constexpr (masked) {
#pragma unroll
      for (int k = 0; k < keys / warp_size; ++k) {
        key_ranks[k] = next_keys[k].rank_or_hidden();
        if constexpr (masking == Masking::simple) {
          const bool masked_here = is_fully_masked(key_ranks[k], highest_rank, first + lane + k * warp_size, end);
          zero_fully_masked(values_here, masked_here, zero_keys, k);
        }
      }
      prefetch_keys(next_keys, plan, s, first + stage_keys, end);
    }

    float scores[keys / 8][4] = {};
    const LdmatrixTile<D> key_tile(keys_here.base);
    multiply_keys<T, D, keys, keep_queries>(scores, query_fragments, queries, warp_row, key_tile);
    if (negative) negate(scores);

    const std::uint32_t seen =
        mask_scores<masking, keys>(scores, plan, rows, query_masks, key_ranks, warp_row, first, end);
    float factors[2];
    online_softmax(scores, acc, scale, factors);
    acc.rescale(factors);
    if constexpr (masking == Masking::simple) sync_key_slice(call, key_slice);
    const LdmatrixTile<D> value_tile(values_here.base);
    multiply_values<T, D, keys, masking == Masking::general>(acc, scores, value_tile, seen);
  }
  cp_async_wait_group<0>();
  const auto threads = static_cast<int>(blockDim.x);
  if (plan.append && rows.first == 0) append_keys<T>(plan, rows, rows.rank, call.scheduler.split, threads);
  epilogue<T, false, false>(call, rows, shared, layout, acc, block_rows, warp_row, key_slice, threads);
}

}  // namespace
}  // namespace robocache::attention_op
