// How the cpu backend cuts a call into tasks, and the memory that a task works in. Nothing here depends on how many
// threads there are, so neither do the bits.
#pragma once

#include "ops/attention/kernel.h"

namespace robocache::attention_op {

inline constexpr std::int64_t block_keys = 64;  // that a tile meets at once: the bits of a mask
inline constexpr std::int64_t most_rows = 96;   // of a tile: enough to pay for laying out a block of keys
inline constexpr std::int64_t row_step = 6;     // rows that are multiplied at once
inline constexpr std::int64_t pad = 16;         // floats: the widest vector

constexpr std::int64_t padded(std::int64_t size) { return divide_up(size, pad) * pad; }

// The queries of all heads that read one head of keys are the rows of one matrix: query by query, its heads side by
// side. A tile is some of those rows, and its keys may be split.
struct Tiling {
  std::int64_t rows = 0, tiles = 0;  // of a tile; of a sequence's head of keys
  std::int64_t splits = 1, split_keys = 0;
  std::int64_t key_blocks = 0;  // of the longest sequence

  constexpr std::int64_t tasks(const Plan& plan) const { return plan.batch * plan.kv_heads * tiles * splits; }
};

// What a split leaves of each row for merge(): the sums, then the largest score and the sum of exponentials.
constexpr std::int64_t partial_row(const Plan& plan) { return padded(plan.head_dim) + 2; }

// Between vectors that are laid out. At a large power of two, columns would fight for the same lines of a cache.
constexpr std::int64_t stride_of(const Plan& plan) {
  const std::int64_t width = padded(plan.head_dim);
  return width % 128 == 0 ? width + pad : width;
}

// The memory of a task: three matrices with the rows of a tile, two of scores, six with the keys of a block.
constexpr std::int64_t scratch_floats(const Plan& plan) {
  return most_rows * (3 * stride_of(plan) + 2 * block_keys) + 6 * block_keys * stride_of(plan) + pad;
}

}  // namespace robocache::attention_op
