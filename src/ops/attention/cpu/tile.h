// A tile of rows, and the memory of a task.
#pragma once

#include "ops/attention/cpu/cpu.h"
#include "ops/attention/host.h"

namespace robocache::attention_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

// The memory of a task, cut into matrices.
struct Buffers {
  float *queries, *sums, *d_out, *keys, *values, *keys_across, *values_across, *scores, *d_scores, *d_keys, *d_values;
  std::int64_t width;  // floats from one row to the next

  Buffers(const Plan& plan, float* scratch) : width(stride_of(plan)) {
    scratch += (64 - reinterpret_cast<std::uintptr_t>(scratch) % 64) / sizeof(float) % pad;  // to a cache line
    const auto take = [&](std::int64_t floats) {
      float* const taken = scratch;
      scratch += floats;
      return taken;
    };
    queries = take(most_rows * width);
    sums = take(most_rows * width);
    d_out = take(most_rows * width);
    scores = take(most_rows * block_keys);
    d_scores = take(most_rows * block_keys);
    keys = take(block_keys * width);
    values = take(block_keys * width);
    keys_across = take(block_keys * width);
    values_across = take(block_keys * width);
    d_keys = take(block_keys * width);
    d_values = take(block_keys * width);
  }
};

// Some rows of one sequence and key head (cpu.h says what rows are).
struct Tile {
  const Plan& plan;
  Sequence sequence;
  std::int64_t g, group, first, count;  // key head, query heads that read it, first row, number of rows

  std::int64_t query(std::int64_t r) const { return (first + r) / group; }
  std::int64_t head(std::int64_t r) const { return g * group + (first + r) % group; }
  template <class T>
  T* vector(const Vectors& vectors, std::int64_t r) const {
    return vector_at<T>(vectors, sequence.number, head(r), sequence.first_query + query(r));
  }
  std::int64_t in_lse(std::int64_t r) const { return lse_offset(plan, sequence, head(r), query(r)); }

  // The keys that any row may see by its position. Both ends of a window grow with the query.
  KeyRange keys() const {
    const std::int64_t begin = keys_in_window(plan, sequence, query(0)).first;
    const std::int64_t end = keys_in_window(plan, sequence, query(count - 1)).end;
    return {begin, end < begin ? begin : end};
  }
};

Tile tile_of(const Plan& plan, const Tiling& tiling, std::int64_t b, std::int64_t g, std::int64_t t) {
  const Sequence sequence = sequence_of(plan, b);
  const std::int64_t rows = sequence.queries * plan.group();
  const std::int64_t first = clamp_to(t * tiling.rows, 0, rows);
  return {plan, sequence, g, rows > 0 ? plan.group() : 1, first, clamp_to(rows - first, 0, tiling.rows)};
}
// Tile t of all sequences and key heads.
Tile tile_of(const Plan& plan, const Tiling& tiling, std::int64_t t) {
  const std::int64_t head = t / tiling.tiles;
  return tile_of(plan, tiling, head / plan.kv_heads, head % plan.kv_heads, t % tiling.tiles);
}

}  // namespace
}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::attention_op
