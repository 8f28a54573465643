// The pipeline of an sm90 block: stages of keys and values in shared memory, each with a full and an empty mbarrier.
#pragma once

#include "gpu/mbarrier.h"
#include "ops/attention/cuda/tiles.h"

namespace robocache::attention_op {
namespace {

// The producer waits for empty and arrives at full, consumers wait for full and arrive at empty. Keys and values of a stage
// have mbarriers of their own.
template <int D, int keys>
struct KeyValuePipeline {
  using Stage = SwizzledTile<D, keys>;
  static constexpr int tile_bytes = Stage::warp_bytes / 2;
  std::uint32_t tiles, mbarriers;
  int stages;

  __device__ Stage tile(int stage, bool values) const { return {tiles + (2 * stage + values) * tile_bytes}; }
  __device__ Mbarrier full(int stage, bool values) const { return {mbarriers + (2 * stage + values) * 8}; }
  __device__ Mbarrier empty(int stage, bool values) const {
    return {mbarriers + (2 * (tuning::most_stages + stage) + values) * 8};
  }
  __device__ Mbarrier queries_full() const { return {mbarriers + 4 * tuning::most_stages * 8}; }
  static_assert(4 * tuning::most_stages + 1 == pipeline_mbarriers);

  // Arrivals that empty a tile. A key slice uses every key_warps-th tile: lane 0 of each of its row warps arrives, and where
  // there are tail rows all lanes of the one warp that has the tile (release() in consumer.h and tail_rows.h).
  static constexpr __device__ int readers(int row_warps, bool has_tail) {
    return row_warps + (has_tail ? warp_size : 0);
  }
  __device__ void init(int readers) const {
    queries_full().init();
    for (int stage = 0; stage < stages; ++stage) {
#pragma unroll
      for (const bool values : {false, true}) {
        full(stage, values).init();
        empty(stage, values).init(readers);
      }
    }
    fence_proxy_async();
  }
};

// A stage of the pipeline, and the parity of its phase.
struct PipelineState {
  int stage = 0;
  unsigned phase = 0;

  __device__ void advance(int steps, int stages) {
    stage += steps;
    if (stage >= stages) {
      stage -= stages;
      phase ^= 1u;
    }
  }
};

}  // namespace
}  // namespace robocache::attention_op
