// The producer warp of an sm90 block: TMA loads of queries, then of keys and values as stages become empty.
#pragma once

#include "gpu/tma.h"
#include "ops/attention/cuda/forward_call.h"
#include "ops/attention/cuda/forward_sm90/pipeline.h"
#include "ops/attention/cuda/forward_sm90/segment_slots.h"

namespace robocache::attention_op {
namespace {

template <int D, int keys>
__device__ void load_queries(const ForwardCall& call, const Rows& rows, const KeyValuePipeline<D, keys>& pipeline,
                             const QueryTile<D>& queries) {
  const int query = static_cast<int>(rows.s.first_query) + rows.query(0);
  const auto sequence = static_cast<int>(call.plan.is_packed() ? 0 : rows.s.number);
#pragma unroll
  for (int block = 0; block < KeyValuePipeline<D, keys>::Stage::blocks; ++block) {
    tma_load_5d(queries.address(0, block * 64), call.query_map, block * 64, 0, query, rows.kv_head, sequence,
                pipeline.queries_full());
  }
}

// Called by one thread. [begin, end) are keys, or slots of keys where they are segmented. The block's first results wait for
// the first loads, so everything that can be done before wait_on_dependent_grids() is done before it.
template <bool segmented, int D, int keys>
__device__ void produce(const ForwardCall& call, const Rows& rows, const KeyValuePipeline<D, keys>& pipeline,
                        const QueryTile<D>& queries, int begin, int end) {
  using Stage = typename KeyValuePipeline<D, keys>::Stage;
  const Plan& plan = call.plan;
  const int copies = SharedLayout::tma_copies(plan.head_dim);
  const auto sequence = static_cast<int>(plan.is_packed() ? 0 : rows.s.number);
  SegmentSlots<keys> slots(rows.s);
  if constexpr (segmented) slots.advance_to_slot(plan, begin);
  int row = static_cast<int>(rows.s.first_key) + begin - slots.begin;
  int tiles = max(end - begin + Stage::keys - 1, 0) / Stage::keys;
  PipelineState pipe_write;
  const auto load = [&](bool values) {
    const Mbarrier full = pipeline.full(pipe_write.stage, values);
    pipeline.empty(pipe_write.stage, values).wait(pipe_write.phase ^ 1u);
    full.arrive_expect_tx(Stage::blocks * Stage::block_bytes);
#pragma unroll 1
    for (int block = 0; block < copies; ++block) {
      tma_load_5d(pipeline.tile(pipe_write.stage, values).base + block * Stage::block_bytes,
                  call.maps[slots.segment][values ? 1 : 0], block * 64, row, 0, rows.kv_head, sequence, full);
    }
  };
  if (call.tma_queries) {
    prefetch_tensor_map(call.query_map);
    pipeline.queries_full().arrive_expect_tx(Stage::blocks * queries.block_bytes());
  }
  for (int k = slots.segment; k < (segmented ? plan.segment_count : 1) && tiles > 0; ++k) {
    if (segmented && plan.segments[k].count == 0) continue;
    prefetch_tensor_map(call.maps[k][0]);
    prefetch_tensor_map(call.maps[k][1]);
  }
  wait_on_dependent_grids();
  if (tiles > 0) load(false);
  if (call.tma_queries) load_queries(call, rows, pipeline, queries);
#pragma unroll 1
  while (tiles > 0) {
    load(true);
    pipe_write.advance(1, pipeline.stages);
    row += Stage::keys;
    while (segmented && row >= slots.count && slots.segment + 1 < plan.segment_count) {
      slots.next_segment(plan);
      row = 0;
    }
    if (--tiles > 0) load(false);
  }
}

}  // namespace
}  // namespace robocache::attention_op
