// How the cpu backend cuts a call into tasks, and the memory that a task works in. Nothing here depends on how many
// threads there are, so neither do the bits.
#pragma once

#include "ops/attention/math.h"

namespace robocache::attention_op {

inline constexpr std::int64_t block_keys = 64;  // of a block, which a tile meets at once: the bits of a mask
inline constexpr std::int64_t most_rows = 96;   // of a tile: enough to pay for loading a block of keys
inline constexpr std::int64_t row_step = 6;     // rows of one product
inline constexpr std::int64_t pad = 16;         // floats of the widest vector

constexpr std::int64_t padded(std::int64_t size) { return divide_up(size, pad) * pad; }

// The queries of all heads that read one head of keys are the rows of one matrix: query by query, its heads side by
// side. A tile is some of those rows, and its keys may be split.
struct Tiling {
  std::int64_t rows = 0, tiles = 0;  // rows of a tile; tiles of a sequence and key head
  std::int64_t splits = 1, split_keys = 0;
  std::int64_t key_blocks = 0;  // of the longest sequence

  constexpr std::int64_t tasks(const Plan& plan) const { return plan.batch * plan.kv_heads * tiles * splits; }
};

// Floats that a split leaves of each row for merge(): the weighted values, the maximum and the sum of exponentials.
constexpr std::int64_t partial_row(const Plan& plan) { return padded(plan.head_dim) + 2; }

// Floats from one loaded vector to the next. With a large power of two, columns would compete for the same cache lines.
constexpr std::int64_t stride_of(const Plan& plan) {
  const std::int64_t width = padded(plan.head_dim);
  return width % 128 == 0 ? width + pad : width;
}

// The memory of a task: three matrices with the rows of a tile, two of scores, six with the keys of a block.
constexpr std::int64_t scratch_floats(const Plan& plan) {
  return most_rows * (3 * stride_of(plan) + 2 * block_keys) + 6 * block_keys * stride_of(plan) + pad;
}

// The functions of simd.cpp that threads.cpp calls.
struct CpuFunctions {
  // Tasks [begin, end). `partials` has tiling.rows rows for each task where keys are split.
  void (*attend)(const Plan&, const Tiling&, std::int64_t begin, std::int64_t end, float* scratch, float* partials);
  // Reduces the partials of the splits.
  void (*merge)(const Plan&, const Tiling&, std::int64_t begin, std::int64_t end, float* scratch,
                const float* partials);
  void (*differentiate_queries)(const BackwardPlan&, const Tiling&, std::int64_t begin, std::int64_t end,
                                float* scratch);
  // The gradients of blocks [begin, end) of keys.
  void (*differentiate_keys)(const BackwardPlan&, const Tiling&, std::int64_t begin, std::int64_t end, float* scratch);
};

}  // namespace robocache::attention_op
