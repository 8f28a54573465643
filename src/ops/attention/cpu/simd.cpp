// The tasks of the cpu backend, compiled once for each SIMD target. A task is some tiles of queries, each of which meets the
// blocks of its keys, or some blocks of keys with all their queries. Everything is float32 once it is loaded.
#include "ops/attention/cpu/backward.h"
#include "ops/attention/cpu/forward.h"

namespace robocache::attention_op {
inline namespace ROBOCACHE_SIMD_TARGET {

// Tasks [begin, end). `partials` has tiling.rows rows for each task where keys are split.
void attend(const Plan& plan, const Tiling& tiling, std::int64_t begin, std::int64_t end, float* scratch,
            float* partials) {
  const Buffers buffers(plan, scratch);
  with_vector_type(plan.dtype, [&](auto type) {
    for (std::int64_t task = begin; task < end; ++task) {
      const Tile tile = tile_of(plan, tiling, task / tiling.splits);
      if (tile.count == 0) continue;
      KeyRange keys = tile.keys();
      if (tiling.splits > 1) {
        const std::int64_t split = task % tiling.splits * tiling.split_keys;
        keys = {clamp_to(split, keys.first, keys.end), clamp_to(split + tiling.split_keys, keys.first, keys.end)};
      }
      attend_tile<typename decltype(type)::type>(
          tile, keys, buffers, partials == nullptr ? nullptr : partials + task * tiling.rows * partial_row(plan));
    }
  });
}

// Merges the splits of tiles [begin, end), once all of them are done.
void merge(const Plan& plan, const Tiling& tiling, std::int64_t begin, std::int64_t end, float* scratch,
           const float* partials) {
  const Buffers buffers(plan, scratch);
  const std::int64_t step = tiling.rows * partial_row(plan);
  with_vector_type(plan.dtype, [&](auto type) {
    for (std::int64_t t = begin; t < end; ++t) {
      const Tile tile = tile_of(plan, tiling, t);
      for (std::int64_t r = 0; r < tile.count; ++r) {
        merge_row<typename decltype(type)::type>(tile, r, partials + t * tiling.splits * step + r * partial_row(plan),
                                                 tiling.splits, step, buffers.sums);
      }
    }
  });
}

// d_q of tiles [begin, end).
void differentiate_queries(const BackwardPlan& backward, const Tiling& tiling, std::int64_t begin, std::int64_t end,
                           float* scratch) {
  const Plan& plan = backward.forward;
  const Buffers buffers(plan, scratch);
  with_vector_type(plan.dtype, [&](auto type) {
    for (std::int64_t t = begin; t < end; ++t) {
      const Tile tile = tile_of(plan, tiling, t);
      if (tile.count > 0) differentiate_tile<typename decltype(type)::type>(backward, tile, buffers);
    }
  });
}

// d_keys and d_values of blocks [begin, end) of keys.
void differentiate_keys(const BackwardPlan& backward, const Tiling& tiling, std::int64_t begin, std::int64_t end,
                        float* scratch) {
  const Plan& plan = backward.forward;
  const Buffers buffers(plan, scratch);
  with_vector_type(plan.dtype, [&](auto type) {
    for (std::int64_t k = begin; k < end; ++k) {
      const std::int64_t head = k / tiling.key_blocks;
      const Sequence sequence = sequence_of(plan, head / plan.kv_heads);
      const std::int64_t first = k % tiling.key_blocks * block_keys;
      if (first >= sequence.keys) continue;
      differentiate_block<typename decltype(type)::type>(backward, tiling, sequence, head % plan.kv_heads, first,
                                                         buffers);
    }
  });
}

extern const CpuFunctions cpu_functions;
constexpr CpuFunctions cpu_functions{attend, merge, differentiate_queries, differentiate_keys};

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::attention_op
